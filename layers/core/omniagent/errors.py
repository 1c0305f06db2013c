"""Every error of the package, by who must act on it.

OmniAgentError
├── ConfigurationError          the developer or operator fixes a setting
│   ├── UnknownModelError
│   ├── ContractError           a document class lacks a field that the runtime needs
│   └── RegistryMisconfigured   the table of running turns does not exist, or may not be used
├── RequestError                the caller changes the request
│   ├── MalformedRequest        400
│   ├── Unauthenticated         401
│   ├── Forbidden               403
│   ├── NotFound                404
│   │   ├── SessionErased       the session is being deleted
│   │   └── UnknownRequest      there is no request with this id
│   ├── NotAllowed              405
│   ├── TurnInProgress          409, with Retry-After
│   ├── NoRunningTurn           409
│   ├── NotRegenerable          409
│   ├── NotWaiting              409, the turn is no longer waiting
│   ├── ReplyConflict          409, the request already has a different answer
│   ├── RequestExpired          410
│   ├── PayloadTooLarge         413
│   ├── UnsupportedMediaType    415
│   ├── InvalidRequest          422
│   ├── TooManyTurns            429, with Retry-After
│   ├── QueueFull               429, with Retry-After
│   ├── TooManyReaders          429, with Retry-After
│   └── BudgetExceeded          429, with Retry-After and the reset time: the tokens of a day
│       └── TooManyRequests     the requests of a minute
├── ModelError                  the turn ends with the fallback answer
│   ├── ModelUnavailable        unreachable, overloaded or silent
│   ├── ModelAuthError          the key was refused
│   ├── ModelRejected           the request was refused
│   ├── ModelStreamBroken       the stream ended early
│   ├── EmptyAnswer
│   ├── AnswerTooLong
│   ├── InvalidOutput           the answer does not match Agent(output=…)
│   └── StepLimitReached
├── ToolError                   the model reads it and can correct itself
│   ├── UnknownTool
│   ├── InvalidArguments
│   ├── ToolTimeout
│   ├── ToolFailed
│   ├── ToolsBusy               too many sync tools are still running
│   ├── TooManyToolCalls        more calls in one step or turn than are allowed
│   ├── ToolNotStarted          the deadline would pass before the tool's timeout
│   └── ToolOutcomeUnknown      the process that ran the tool died
├── StorageError                503
│   ├── StorageUnavailable      MongoDB cannot be reached
│   ├── StorageConflict         a unique key or a condition was violated
│   ├── StorageRejected         MongoDB refused the operation: a bug or a wrong setting
│   └── TurnLost                another process took the turn over; writes are refused
├── RegistryUnavailable         503, the table of running turns cannot be reached
│   └── RegistryMisconfigured   500, see above
├── QueueUnavailable            503, a queue cannot be reached
│   └── NoQueue                 503, none is configured
│       └── NoRunQueue          503, none for the run function
├── WebhookFailed               502, the operator's server did not accept an event
├── DeletionUnfinished          503, a retry of the request continues it
├── SecretsUnavailable          503, Secrets Manager cannot be reached
└── IdentityUnavailable         503, the issuer's keys cannot be fetched

`str(error)` is for the log. `error.public` is the only text that may leave the process.
"""

from datetime import datetime
from typing import ClassVar


class OmniAgentError(Exception):
    """The base class. Each class defines its HTTP status, its code and its public text."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    public: str = "An internal error occurred. Try again; if it persists, report the request id."
    retry_after: float | None = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.public)


class ConfigurationError(OmniAgentError):
    """A setting is missing or wrong. The log names it."""

    code = "configuration_error"
    title = "Configuration error"
    public = "The service is misconfigured. Its operator can find the cause in the log."


class UnknownModelError(ConfigurationError):
    """No provider is registered for the model's name."""


class ContractError(ConfigurationError):
    """A document class violates the contract of `DocumentModels`."""


class RequestError(OmniAgentError):
    """The caller must change the request. The detail is written for the caller and is public."""

    status = 400
    code = "bad_request"
    title = "Bad request"
    public = "The request is not valid."
    reason: str = ""
    """Why it was refused, in words for the log. Never quotes what the caller sent."""

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        if detail:
            self.public = detail
        if retry_after is not None:
            self.retry_after = retry_after


class MalformedRequest(RequestError):
    code = "malformed_request"
    title = "Malformed request"
    public = "The request body is not valid JSON."


class Unauthenticated(RequestError):
    status = 401
    code = "unauthenticated"
    title = "Not authenticated"
    public = "Send valid credentials."

    def __init__(self, detail: str = "", *, challenge: str = "", reason: str = "") -> None:
        super().__init__(detail)
        self.challenge = challenge
        """The value of the WWW-Authenticate header."""
        self.reason = reason


class Forbidden(RequestError):
    """The caller is known, but may not do this."""

    status = 403
    code = "forbidden"
    title = "Forbidden"
    public = "You may not do this."

    def __init__(self, detail: str = "", *, reason: str = "") -> None:
        super().__init__(detail)
        self.reason = reason


class NotFound(RequestError):
    status = 404
    code = "not_found"
    title = "Not found"
    public = "It does not exist, or you have no access to it."


class SessionErased(NotFound):
    code = "session_erased"
    public = "This session is being deleted. Start a new one."


class UnknownRequest(NotFound):
    code = "unknown_request"
    public = "There is no request with this id, or you have no access to it."


class NotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"
    title = "Method not allowed"
    public = "This path does not support the method."


class TurnInProgress(RequestError):
    status = 409
    code = "turn_in_progress"
    title = "Turn in progress"
    public = "This session is still answering another message. Wait for that answer or cancel it."
    retry_after = 1.0


class NoRunningTurn(RequestError):
    status = 409
    code = "no_running_turn"
    title = "No running turn"
    public = "No turn is running in this session."


class NotRegenerable(RequestError):
    status = 409
    code = "not_regenerable"
    title = "Not regenerable"
    public = "Only the last answer of a session can be regenerated."


class NotWaiting(RequestError):
    status = 409
    code = "not_waiting"
    title = "Not waiting"
    public = "This answer is no longer waiting: the conversation continued, or the answer was stopped."


class ReplyConflict(RequestError):
    status = 409
    code = "reply_conflict"
    title = "Already answered"
    public = "This request already has a different answer. The first answer counts."


class RequestExpired(RequestError):
    status = 410
    code = "request_expired"
    title = "Request expired"
    public = "This request expired before it was answered. Ask again."


class PayloadTooLarge(RequestError):
    status = 413
    code = "payload_too_large"
    title = "Payload too large"
    public = "The request body is too large."


class UnsupportedMediaType(RequestError):
    status = 415
    code = "unsupported_media_type"
    title = "Unsupported media type"
    public = "Send application/json."


class InvalidRequest(RequestError):
    status = 422
    code = "invalid_request"
    title = "Invalid request"
    public = "The request body does not match the expected schema."


class TooManyTurns(RequestError):
    status = 429
    code = "too_many_turns"
    title = "Too many turns"
    public = "You have too many turns running at once. Wait for one to finish."
    retry_after = 2.0


class QueueFull(RequestError):
    """The session has `MAX_QUEUED_MESSAGES` already."""

    status = 429
    code = "queue_full"
    title = "Too many queued messages"
    public = "This session has too many queued messages. Wait for one of them to be answered."
    retry_after = 5.0


class TooManyReaders(RequestError):
    """Too many requests follow running answers; each holds a process."""

    status = 429
    code = "too_many_readers"
    title = "Too many readers"
    public = "Too many connections are reading your answers at once. Close a tab or try again in a moment."
    retry_after = 5.0


class BudgetExceeded(RequestError):
    """The user's tokens of the day are spent, or reserved by running turns."""

    status = 429
    code = "budget_exceeded"
    title = "Budget exceeded"
    public = "You have used up your tokens for today."

    def __init__(self, detail: str = "", *, retry_after: float | None = None, reset_at: datetime | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.reset_at = reset_at
        """When the budget resets."""


class TooManyRequests(BudgetExceeded):
    """The user has reached the requests allowed per minute."""

    code = "too_many_requests"
    title = "Too many requests"
    public = "You have made too many requests in this minute."


class ModelError(OmniAgentError):
    """The model gave no usable answer. The turn ends with the fallback text."""

    status = 502
    code = "model_error"
    title = "Model error"
    public = "The model could not answer. Try again in a moment."

    def __init__(self, detail: str = "", *, api_text: str = "") -> None:
        super().__init__(detail)
        self.api_text = api_text
        """The API's own message. It may quote the prompt, so it is not part of `str(error)`, which is logged."""


class ModelUnavailable(ModelError):
    code = "model_unavailable"


class ModelAuthError(ModelError):
    code = "model_auth_error"


class ModelRejected(ModelError):
    code = "model_rejected"


class ModelStreamBroken(ModelError):
    code = "model_stream_broken"


class EmptyAnswer(ModelError):
    code = "empty_answer"


class AnswerTooLong(ModelError):
    code = "answer_too_long"
    public = "The answer was too long. Try a smaller request."


class InvalidOutput(ModelError):
    """The detail tells the model what to correct."""

    code = "invalid_output"
    public = "The model's answer did not match the expected format. Try again."


class StepLimitReached(ModelError):
    code = "step_limit_reached"
    public = "The answer needed more steps than are allowed. Try a smaller request."


class ToolError(OmniAgentError):
    """A tool call failed. The model reads `detail`; the stream shows only the public text.

    A tool raises it to tell the model what to correct: `raise ToolError("unknown city")`.
    """

    code = "tool_error"
    title = "Tool error"
    public = "The tool reported an error."


class UnknownTool(ToolError):
    code = "unknown_tool"
    public = "The model called a tool that does not exist."


class InvalidArguments(ToolError):
    code = "invalid_arguments"
    public = "The model called the tool with invalid arguments."


class ToolTimeout(ToolError):
    code = "tool_timeout"
    public = "The tool took too long."


class ToolFailed(ToolError):
    code = "tool_failed"
    public = "The tool failed."


class ToolsBusy(ToolError):
    """Every thread for sync tools is in use, most likely by calls that hang."""

    code = "tools_busy"
    public = "Too many tools are still running."


class TooManyToolCalls(ToolError):
    code = "too_many_tool_calls"
    public = "The model requested more tool calls than are allowed."


class ToolNotStarted(ToolError):
    code = "tool_not_started"
    public = "There was not enough time left to run the tool."


class ToolOutcomeUnknown(ToolError):
    """The process died while it ran the tool. Only a tool with `retry_safe=True` is run again."""

    code = "tool_outcome_unknown"
    public = "The tool was interrupted, and its outcome is unknown."


class StorageError(OmniAgentError):
    """A MongoDB operation failed."""

    status = 503
    code = "storage_error"
    title = "Storage error"
    public = "The conversation store reported an error. Try again in a moment."
    retry_after = 2.0


class StorageUnavailable(StorageError):
    code = "storage_unavailable"
    title = "Storage unavailable"
    public = "The conversation store cannot be reached. Try again in a moment."


class StorageConflict(StorageError):
    code = "storage_conflict"
    title = "Storage conflict"
    public = "Another request changed this conversation at the same time. Try again."


class StorageRejected(StorageError):
    code = "storage_rejected"


class TurnLost(StorageError):
    code = "turn_lost"
    title = "Turn lost"
    public = "This answer was interrupted, and the conversation continued without it."


class RegistryUnavailable(OmniAgentError):
    """The registry of running turns cannot be reached: DynamoDB on Lambda."""

    status = 503
    code = "registry_unavailable"
    title = "Turn registry unavailable"
    public = "Turns cannot be started right now. Try again in a moment."
    retry_after: float | None = 2.0


class RegistryMisconfigured(ConfigurationError, RegistryUnavailable):
    """The DynamoDB table does not exist, or the role may not use it. A running turn continues without it."""

    status = 500
    retry_after = None


class QueueUnavailable(OmniAgentError):
    """SQS cannot be reached."""

    status = 503
    code = "queue_unavailable"
    title = "Queue unavailable"
    public = "The request cannot be queued right now. Try again in a moment."
    retry_after: float | None = 2.0


class NoQueue(QueueUnavailable):
    """SUMMARY_QUEUE_URL is not set."""

    code = "no_queue"
    title = "No summary queue"
    public = "This deployment has no summary queue: SUMMARY_QUEUE_URL is not set."
    retry_after = None


class NoRunQueue(NoQueue):
    """RUN_QUEUE_URL or WATCH_QUEUE_URL is not set."""

    code = "no_run_queue"
    title = "No run queue"
    public = "This deployment does not support background turns: RUN_QUEUE_URL or WATCH_QUEUE_URL is not set."


class WebhookFailed(OmniAgentError):
    """The webhook's server did not accept an event. It is retried later."""

    status = 502
    code = "webhook_failed"
    title = "Webhook failed"
    public = "The webhook could not be delivered."


class DeletionUnfinished(OmniAgentError):
    """There is more to delete than one invocation can. Nobody can see what is left."""

    status = 503
    code = "deletion_unfinished"
    title = "Deletion unfinished"
    public = "The deletion has begun and needs more time. Send the request again."
    retry_after = 1.0


class SecretsUnavailable(OmniAgentError):
    """Secrets Manager cannot be reached. A secret that is missing is a `ConfigurationError`."""

    status = 503
    code = "secrets_unavailable"
    title = "Secrets unavailable"
    public = "The service cannot read its configuration right now. Try again in a moment."
    retry_after = 2.0


class IdentityUnavailable(OmniAgentError):
    """The issuer's signing keys cannot be fetched."""

    status = 503
    code = "identity_unavailable"
    title = "Identity provider unavailable"
    public = "Your token cannot be checked right now. Try again in a moment."
    retry_after = 2.0
