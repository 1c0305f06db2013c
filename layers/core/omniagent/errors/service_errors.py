"""Errors of the services behind the product. Most pass with time."""

from omniagent.errors.developer_errors import ConfigurationError
from omniagent.errors.omniagent_error import OmniAgentError


class StorageError(OmniAgentError):
    """A MongoDB operation failed."""

    status = 503
    public = "The conversation store reported an error. Try again in a moment."
    retry_after = 2.0


class StorageUnavailable(StorageError):
    public = "The conversation store cannot be reached. Try again in a moment."


class StorageConflict(StorageError):
    public = "Another request changed this conversation at the same time. Try again."


class StorageRejected(StorageError):
    """MongoDB refused the operation: a bug or a wrong setting."""


class TurnLost(StorageError):
    public = "This answer was interrupted, and the conversation continued without it."


class RegistryUnavailable(OmniAgentError):
    """The registry of running turns cannot be reached: DynamoDB on Lambda."""

    status = 503
    public = "Turns cannot be started right now. Try again in a moment."
    retry_after: float | None = 2.0


class RegistryMisconfigured(ConfigurationError, RegistryUnavailable):
    """The DynamoDB table does not exist, or the role may not use it. A running turn continues without it."""

    status = 500
    code = "configuration_error"
    retry_after = None


class QueueUnavailable(OmniAgentError):
    """SQS cannot be reached."""

    status = 503
    public = "The request cannot be queued right now. Try again in a moment."
    retry_after: float | None = 2.0


class NoQueue(QueueUnavailable):
    """SUMMARY_QUEUE_URL is not set."""

    public = "This deployment has no summary queue: SUMMARY_QUEUE_URL is not set."
    retry_after = None


class NoRunQueue(NoQueue):
    """RUN_QUEUE_URL is not set."""

    public = "This deployment does not support background turns: RUN_QUEUE_URL is not set."


class WebhookFailed(OmniAgentError):
    """The webhook's server did not accept an event. It is retried later."""

    status = 502
    public = "The webhook could not be delivered."


class SecretsUnavailable(OmniAgentError):
    """Secrets Manager cannot be reached. A secret that is missing is a `ConfigurationError`."""

    status = 503
    public = "The service cannot read its configuration right now. Try again in a moment."
    retry_after = 2.0


class IdentityUnavailable(OmniAgentError):
    """The issuer's signing keys cannot be fetched."""

    status = 503
    public = "Your token cannot be checked right now. Try again in a moment."
    retry_after = 2.0
