"""Lambda on a laptop: real processes, the real Runtime API, no Docker.

What it does as Lambda does: Function URLs (payload 2.0, buffered and streamed, CORS, a signature that has to be there),
the Invoke API, queues with partial failures, warm and frozen processes, timeouts, crashes, SnapStart, and the quotas of
`Limits`.

What it does not do:

- Identity. No signature is verified, and no IAM policy, resource policy or KMS key is looked at.
- Resources. Memory, CPU and the size and privacy of /tmp are this machine's; the code is not read-only, the network is
  open, the user is the caller's.
- Time. Streams have no limit of bandwidth (Lambda: 2 MB/s after 6 MB). An initialisation is timed without the time that
  it waits for a processor. A process is never ended for its age, nor for being idle.
- SnapStart. Copies are forks: of the threads that were started before the snapshot only those of idle thread pools come
  back; C code can see that process ids differ; the clock goes on. OpenSSL notices the new process id and seeds itself,
  where Lambda's kernel would. Copies share open files with their offsets. Linux only.
- Deployment. Versions, aliases, provisioned concurrency, code signing and reserved names of variables are not checked;
  of the quotas only those of `Limits` are, not the size of the package.
- Events. No API Gateway, load balancer, S3, schedule or stream; no destinations. Event source mappings poll one queue
  with one poller, without batching windows and filters.
- Logs and metrics. Lines go to the terminal; there is no CloudWatch, X-Ray, Telemetry API and no extension.
- The Invoke API. No `InvokeWithResponseStream` framing, dry runs, tenants or log tails.
- Headers. Which ones a Function URL renames is taken from what users of AWS report; the total size is not limited.
"""

from local.emulator.emulator import Emulator, Process, Result
from local.emulator.environment import State
from local.emulator.identity import Identity
from local.emulator.limits import Limits
from local.emulator.pool import Throttled

__all__ = ["Emulator", "Identity", "Limits", "Process", "Result", "State", "Throttled"]
