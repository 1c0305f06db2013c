"""Lambda's quotas that a chat backend can reach. A test may lower them."""

from dataclasses import dataclass

from local.cloudformation import TemplateError
from local.template import Function

MB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """AWS's own values."""

    init_seconds: float = 10.0
    """Start of a process, and the hooks after a restore."""
    snapshot_init_seconds: float = 130.0
    """Start of the process of which a snapshot is taken."""
    request_bytes: int = 6 * MB
    event_bytes: int = MB
    """An asynchronous invocation."""
    response_bytes: int = 6 * MB
    streamed_bytes: int = 200 * MB
    environment_bytes: int = 4096

    def check_environment(self, function: Function) -> None:
        """Refuse an environment that CloudFormation would refuse to deploy."""
        size = sum(len(name.encode()) + len(value.encode()) for name, value in function.environment.items())
        if size > self.environment_bytes:
            raise TemplateError(
                f"{function.logical_id}: the environment variables have {size} bytes, Lambda takes "
                f"{self.environment_bytes}"
            )
