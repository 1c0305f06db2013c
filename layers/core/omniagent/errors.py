"""Every error of the package, by who must act on it.

OmniAgentError
├── ConfigurationError          the developer or operator fixes a setting
│   ├── UnknownModelError
│   └── ContractError           a document class lacks a field that the runtime needs
├── RequestError                the caller changes the request
│   ├── MalformedRequest        400
│   ├── Unauthenticated         401
│   ├── NotFound                404
│   │   └── SessionErased       the session is being deleted
│   ├── NotAllowed              405
│   ├── TurnInProgress          409, with Retry-After
│   ├── NoRunningTurn           409
│   ├── NotRegenerable          409
│   ├── PayloadTooLarge         413
│   ├── UnsupportedMediaType    415
│   ├── InvalidRequest          422
│   └── TooManyTurns            429, with Retry-After
├── ModelError                  the turn ends with the fallback answer
│   ├── ModelUnavailable        unreachable, overloaded or silent
│   ├── ModelAuthError          the key was refused
│   ├── ModelRejected           the request was refused
│   ├── ModelStreamBroken       the stream ended before its end
│   ├── EmptyAnswer
│   ├── AnswerTooLong
│   ├── InvalidOutput           the answer is not what Agent(output=…) asks for
│   └── StepLimitReached
├── ToolError                   the model reads it and corrects itself
│   ├── UnknownTool
│   ├── InvalidArguments
│   ├── ToolTimeout
│   ├── ToolFailed
│   ├── ToolsBusy               too many sync tools are still running
│   └── ToolNotStarted          the deadline would pass before the tool's timeout
├── StorageError                503
│   ├── StorageUnavailable      MongoDB cannot be reached: try again
│   ├── StorageConflict         a unique key or a condition was violated
│   ├── StorageRejected         MongoDB refused the operation: a bug or a wrong setting
│   └── TurnLost                the turn was taken over; nothing may be written any more
├── RegistryUnavailable         503, the table of running turns cannot be reached
├── QueueUnavailable            503, the queue of summaries cannot be reached
│   └── NoQueue                 503, there is none
├── SecretsUnavailable          503, Secrets Manager cannot be reached: try again
└── IdentityUnavailable         503, the issuer's keys cannot be read

`str(error)` is for the log. `error.public` is the only text that may leave the process.
"""

from typing import ClassVar


class OmniAgentError(Exception):
    """The root. A class carries the HTTP status, the code and the text that the public may see."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    public: str = "Something went wrong on our side. Try again; quote the request id if it stays."
    retry_after: float | None = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.public)


class ConfigurationError(OmniAgentError):
    """A setting is missing or wrong. The log says which."""

    code = "configuration_error"
    title = "Not configured"
    public = "The service is not configured completely. Its operator finds the reason in the log."


class UnknownModelError(ConfigurationError):
    """No provider is registered for the model's name."""


class ContractError(ConfigurationError):
    """A document class does not keep the contract of `DocumentModels`."""


class RequestError(OmniAgentError):
    """The request cannot be served as it is. The detail is written for the caller and is public."""

    status = 400
    code = "bad_request"
    title = "Bad request"
    public = "The request cannot be served as it is."

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        if detail:
            self.public = detail
        if retry_after is not None:
            self.retry_after = retry_after


class MalformedRequest(RequestError):
    code = "malformed_request"
    title = "Malformed request"
    public = "The body is not valid JSON."


class Unauthenticated(RequestError):
    status = 401
    code = "unauthenticated"
    title = "Not authenticated"
    public = "Send valid credentials."

    def __init__(self, detail: str = "", *, challenge: str = "") -> None:
        super().__init__(detail)
        self.challenge = challenge
        """The WWW-Authenticate header: how to do better."""


class NotFound(RequestError):
    status = 404
    code = "not_found"
    title = "Not found"
    public = "There is nothing here, or it is not yours."


class SessionErased(NotFound):
    code = "session_erased"
    public = "This session is being deleted. Start another one."


class NotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"
    title = "Method not allowed"
    public = "This path does not take that method."


class TurnInProgress(RequestError):
    status = 409
    code = "turn_in_progress"
    title = "Turn in progress"
    public = "This session is still answering another message. Stop it or wait."
    retry_after = 1.0


class NoRunningTurn(RequestError):
    status = 409
    code = "no_running_turn"
    title = "No running turn"
    public = "This session is not answering anything right now."


class NotRegenerable(RequestError):
    status = 409
    code = "not_regenerable"
    title = "Cannot be answered again"
    public = "Only the last answer of a session can be generated again."


class PayloadTooLarge(RequestError):
    status = 413
    code = "payload_too_large"
    title = "Payload too large"
    public = "The body is too large."


class UnsupportedMediaType(RequestError):
    status = 415
    code = "unsupported_media_type"
    title = "Unsupported media type"
    public = "Send application/json."


class InvalidRequest(RequestError):
    status = 422
    code = "invalid_request"
    title = "Invalid request"
    public = "The body does not have the expected shape."


class TooManyTurns(RequestError):
    status = 429
    code = "too_many_turns"
    title = "Too many turns"
    public = "Too many answers are being generated for you at once. Wait for one to end."
    retry_after = 2.0


class ModelError(OmniAgentError):
    """The model gave no usable answer. The turn ends with the fallback text."""

    status = 502
    code = "model_error"
    title = "Model error"
    public = "The model could not answer. Try again in a moment."

    def __init__(self, detail: str = "", *, api_text: str = "") -> None:
        super().__init__(detail)
        self.api_text = api_text
        """What the API itself said. It may quote the prompt, so it is not part of `str(error)`, which is logged."""


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
    public = "The answer became too long. Ask for less at once."


class InvalidOutput(ModelError):
    """The detail says what the model has to correct."""

    code = "invalid_output"
    public = "The model's answer did not have the expected form. Try again."


class StepLimitReached(ModelError):
    code = "step_limit_reached"
    public = "The answer needed more steps than are allowed. Ask for less at once."


class ToolError(OmniAgentError):
    """A tool call failed. `detail` is what the model reads; the stream shows only the public text.

    A tool raises it to tell the model what to correct: `raise ToolError("unknown city")`.
    """

    code = "tool_error"
    title = "Tool error"
    public = "The tool reported an error."


class UnknownTool(ToolError):
    code = "unknown_tool"
    public = "The model asked for a tool that does not exist."


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
    """Every thread for sync tools is taken, most likely by calls that hang."""

    code = "tools_busy"
    public = "Too many tools are still running."


class ToolNotStarted(ToolError):
    code = "tool_not_started"
    public = "There was not enough time left to run the tool."


class StorageError(OmniAgentError):
    """MongoDB did not do what was asked."""

    status = 503
    code = "storage_error"
    title = "Storage error"
    public = "The conversation store has a problem. Try again in a moment."
    retry_after = 2.0


class StorageUnavailable(StorageError):
    code = "storage_unavailable"
    title = "Storage unavailable"
    public = "The conversation store cannot be reached. Try again in a moment."


class StorageConflict(StorageError):
    code = "storage_conflict"
    title = "Storage conflict"
    public = "Somebody else changed this conversation at the same time. Try again."


class StorageRejected(StorageError):
    code = "storage_rejected"


class TurnLost(StorageError):
    code = "turn_lost"
    title = "Turn lost"
    public = "This answer was interrupted and the conversation went on without it."


class RegistryUnavailable(OmniAgentError):
    """DynamoDB cannot be reached."""

    status = 503
    code = "registry_unavailable"
    title = "Turn registry unavailable"
    public = "Turns cannot be started right now. Try again in a moment."
    retry_after = 2.0


class QueueUnavailable(OmniAgentError):
    """SQS cannot be reached."""

    status = 503
    code = "queue_unavailable"
    title = "Summary queue unavailable"
    public = "Summaries cannot be queued right now. Try again in a moment."
    retry_after: float | None = 2.0


class NoQueue(QueueUnavailable):
    """SUMMARY_QUEUE_URL is not set."""

    code = "no_queue"
    title = "No summary queue"
    public = "This deployment has no queue for summaries: its operator has not set SUMMARY_QUEUE_URL."
    retry_after = None


class SecretsUnavailable(OmniAgentError):
    """Secrets Manager cannot be reached. A secret that is missing is a `ConfigurationError`."""

    status = 503
    code = "secrets_unavailable"
    title = "Secrets unavailable"
    public = "The service cannot read its configuration right now. Try again in a moment."
    retry_after = 2.0


class IdentityUnavailable(OmniAgentError):
    """The keys that tokens are checked with cannot be read."""

    status = 503
    code = "identity_unavailable"
    title = "Identity provider unavailable"
    public = "Your token cannot be checked right now. Try again in a moment."
    retry_after = 2.0
