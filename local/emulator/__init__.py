"""Lambda on a laptop: real processes, the real Runtime API, no Docker.

It behaves like Lambda in these respects: Function URLs (payload 2.0, buffered and streamed, CORS, a required
signature), the Invoke API, queues with partial failures, schedules with a rate, warm and frozen processes, processes
that serve many requests at once (Managed Instances), timeouts, crashes, SnapStart, and the quotas of `Limits`.

It differs in these:

- Identity. No signature is verified, and no IAM policy, resource policy or KMS key is checked.
- Resources. Memory, CPU and the size and privacy of /tmp are this machine's; the code is not read-only, the network is
  open, the user is the caller's.
- Time. Streams have no bandwidth limit (Lambda: 2 MB/s after 6 MB). The time of an initialisation excludes waiting for
  a processor. A process is never ended for its age or for being idle.
- SnapStart. Copies are forks: of the threads started before the snapshot, only those of idle thread pools are
  restarted; C code can see that process ids differ; the clock continues. OpenSSL notices the new process id and seeds
  itself, which on Lambda the kernel does. Copies share open files with their offsets. Linux only.
- Deployment. Versions, aliases, provisioned concurrency, code signing and reserved names of variables are not checked.
  Only the quotas of `Limits` are, not the size of the package.
- Events. Of API Gateway, only the events of a streaming REST API (`api_gateway=`); no load balancer, S3 or
  stream; no destinations; no schedules that are resources of their own. Event source mappings poll one queue with one
  poller, without batching windows and filters.
- Logs and metrics. Lines go to the terminal; there is no CloudWatch, X-Ray, Telemetry API and no extension.
- The Invoke API. No `InvokeWithResponseStream` framing, dry runs, tenants or log tails.
- Headers. The list of headers that a Function URL renames comes from reports of AWS users; the total size is not
  limited.
"""

from local.emulator.emulator import Emulator, Process, Result
from local.emulator.environment import State
from local.emulator.identity import Identity
from local.emulator.limits import Limits
from local.emulator.pool import Throttled

__all__ = ["Emulator", "Identity", "Limits", "Process", "Result", "State", "Throttled"]
