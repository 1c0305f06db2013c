"""Every error of the package, by who must act on it.

OmniAgentError
├── RequestError                the caller changes the request
│   ├── MalformedRequest        400
│   ├── Unauthenticated         401
│   ├── Forbidden               403, the caller is known, but may not do this
│   ├── NotFound                404
│   │   ├── SessionErased       the session, or its user, is being deleted
│   │   └── UnknownRequest      there is no request with this id
│   ├── NotAllowed              405
│   ├── TurnInProgress          409, with Retry-After
│   ├── NoRunningTurn           409
│   ├── NotRegenerable          409
│   ├── NotWaiting              409, the turn is no longer waiting
│   ├── ReplyConflict           409, the request already has a different reply
│   ├── RequestExpired          410
│   ├── PayloadTooLarge         413
│   ├── UnsupportedMediaType    415
│   ├── InvalidRequest          422
│   ├── TooManyTurns            429, with Retry-After
│   ├── QueueFull               429, with Retry-After: the session has `MAX_QUEUED_MESSAGES` already
│   ├── TooManyReaders          429, with Retry-After: each of the followed answers holds a process
│   └── BudgetExceeded          429, with Retry-After and the reset time: the tokens of a day
│       └── TooManyRequests     the requests of a minute
├── ConfigurationError          the developer or operator fixes a setting
│   ├── UnknownModelError       no provider is registered for the model's name
│   ├── ContractError           a document class lacks a field that the runtime needs
│   └── RegistryMisconfigured   the table of turns does not exist, or may not be used. A running turn goes on
├── ModelError                  the turn ends with the fallback answer
│   ├── ModelUnavailable        unreachable, overloaded or silent
│   ├── ModelAuthError          the key was refused
│   ├── ModelRejected           the request was refused
│   ├── ModelStreamBroken       the stream ended early
│   ├── EmptyAnswer             neither text nor a tool call
│   ├── AnswerTooLong
│   ├── InvalidOutput           the answer does not match Agent(output=…)
│   └── StepLimitReached
├── ToolError                   the model reads it and can correct itself
│   ├── UnknownTool
│   ├── InvalidArguments
│   ├── ToolTimeout
│   ├── ToolFailed
│   ├── ToolsBusy               too many sync tools are still running, most likely by calls that hang
│   ├── TooManyToolCalls        more calls in one step or turn than are allowed
│   ├── ToolNotStarted          the deadline would pass before the tool's timeout
│   └── ToolOutcomeUnknown      the process that ran the tool died: only `retry_safe` tools run again
├── WebhookFailed               502, the operator's server did not accept an event, which is retried later
└── Unavailable                 503, with Retry-After
    ├── StorageError            a MongoDB operation failed
    │   ├── StorageUnavailable  MongoDB cannot be reached
    │   ├── StorageConflict     a unique key or a condition was violated
    │   ├── StorageRejected     MongoDB refused the operation: a bug or a wrong setting
    │   └── TurnLost            another process took the turn over; writes are refused
    ├── RegistryUnavailable     the registry of running turns cannot be reached: DynamoDB on Lambda
    │   └── RegistryMisconfigured   500, see above
    ├── QueueUnavailable        SQS cannot be reached
    │   └── NoQueue             none is configured
    │       └── NoRunQueue      none for the run function
    ├── SecretsUnavailable      Secrets Manager cannot be reached. A missing secret is a ConfigurationError
    └── IdentityUnavailable     the issuer's keys cannot be fetched

`str(error)` is for the log. `error.public` is the only text that may leave the process.
"""

import re
from datetime import datetime
from typing import ClassVar


class OmniAgentError(Exception):
    """The base class. Each class defines its HTTP status, its public text and after how many seconds to try again.

    Its code is its name in snake case, unless it has another one. Its title is the code in words.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    public: str = "An internal error occurred. Try again; if it persists, report the request id."
    retry_after: float | None = None

    def __init_subclass__(
        cls, *, status: int = 0, code: str = "", public: str = "", retry_after: float | None = None
    ) -> None:
        super().__init_subclass__()
        if status:
            cls.status = status
        if public:
            cls.public = public
        if retry_after:
            cls.retry_after = retry_after
        if "code" not in vars(cls):
            cls.code = code or "_".join(re.findall("[A-Z][a-z0-9]*", cls.__name__)).lower()
        cls.title = cls.code.replace("_", " ").capitalize()

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.public)


class RequestError(OmniAgentError, status=400, code="bad_request", public="The request is not valid."):
    """The caller must change the request. The detail is written for the caller and is public."""

    def __init__(self, detail: str = "", *, retry_after: float | None = None, reason: str = "") -> None:
        super().__init__(detail)
        self.public = detail or self.public
        self.retry_after = self.retry_after if retry_after is None else retry_after
        self.reason = reason
        """Why it was refused, in words for the log. Never quotes what the caller sent."""


class MalformedRequest(RequestError, public="The request body is not valid JSON."): ...


class Unauthenticated(RequestError, status=401, public="Send valid credentials."):
    def __init__(self, detail: str = "", *, challenge: str = "", reason: str = "") -> None:
        super().__init__(detail, reason=reason)
        self.challenge = challenge
        """The value of the WWW-Authenticate header."""


class Forbidden(RequestError, status=403, public="You may not do this."): ...


class NotFound(RequestError, status=404, public="It does not exist, or you have no access to it."): ...


class SessionErased(
    NotFound, public="This session, or all data of its user, is being deleted. Start a new one in a few minutes."
): ...


class UnknownRequest(NotFound, public="There is no request with this id, or you have no access to it."): ...


class NotAllowed(
    RequestError, status=405, code="method_not_allowed", public="This path does not support the method."
): ...


class TurnInProgress(
    RequestError,
    status=409,
    retry_after=1.0,
    public="This session is still answering another message. Wait for that answer or cancel it.",
): ...


class NoRunningTurn(RequestError, status=409, public="No turn is running in this session."): ...


class NotRegenerable(RequestError, status=409, public="Only the last answer of a session can be regenerated."): ...


class NotWaiting(
    RequestError,
    status=409,
    public="This answer is no longer waiting: the conversation continued, or the answer was stopped.",
): ...


class ReplyConflict(
    RequestError, status=409, public="This request already has a different reply. The first reply counts."
): ...


class RequestExpired(RequestError, status=410, public="This request expired before anyone replied. Ask again."): ...


class PayloadTooLarge(RequestError, status=413, public="The request body is too large."): ...


class UnsupportedMediaType(RequestError, status=415, public="Send application/json."): ...


class InvalidRequest(RequestError, status=422, public="The request body does not match the expected schema."): ...


class TooManyTurns(
    RequestError, status=429, retry_after=2.0, public="You have too many turns running at once. Wait for one to finish."
): ...


class QueueFull(
    RequestError,
    status=429,
    retry_after=5.0,
    public="This session has too many queued messages. Wait for one of them to be answered.",
): ...


class TooManyReaders(
    RequestError,
    status=429,
    retry_after=5.0,
    public="Too many connections are reading your answers at once. Close a tab or try again in a moment.",
): ...


class BudgetExceeded(RequestError, status=429, public="You have used up your tokens for today."):
    def __init__(self, detail: str = "", *, retry_after: float | None = None, reset_at: datetime | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.reset_at = reset_at
        """When the budget resets."""


class TooManyRequests(BudgetExceeded, public="You have made too many requests in this minute."): ...


class ConfigurationError(
    OmniAgentError, public="The service is misconfigured. Its operator can find the cause in the log."
):
    """A setting is missing or wrong. The log names it."""


class UnknownModelError(ConfigurationError, code="configuration_error"): ...


class ContractError(ConfigurationError, code="configuration_error"): ...


class ModelError(OmniAgentError, status=502, public="The model could not answer. Try again in a moment."):
    """The model gave no usable answer. The turn ends with the fallback text."""

    def __init__(self, detail: str = "", *, api_text: str = "", api_status: int | None = None, param: str = "") -> None:
        super().__init__(detail)
        self.api_text = api_text
        """The API's own message. It may quote the prompt, so it is not part of `str(error)`, which is logged."""
        self.api_status = api_status
        """The HTTP status of the API's answer."""
        self.param = param
        """The field of the request that the API names."""


class ModelUnavailable(ModelError): ...


class ModelAuthError(ModelError): ...


class ModelRejected(ModelError): ...


class ModelStreamBroken(ModelError): ...


class EmptyAnswer(ModelError): ...


class AnswerTooLong(ModelError, public="The answer was too long. Try a smaller request."): ...


class InvalidOutput(ModelError, public="The model's answer did not match the expected format. Try again."):
    """The detail tells the model what to correct."""


class StepLimitReached(ModelError, public="The answer needed more steps than are allowed. Try a smaller request."): ...


class ToolError(OmniAgentError, public="The tool reported an error."):
    """A tool call failed. The model reads `detail`; the stream shows only the public text.

    A tool raises it to tell the model what to correct: `raise ToolError("unknown city")`.
    """


class UnknownTool(ToolError, public="The model called a tool that does not exist."): ...


class InvalidArguments(ToolError, public="The model called the tool with invalid arguments."): ...


class ToolTimeout(ToolError, public="The tool took too long."): ...


class ToolFailed(ToolError, public="The tool failed."): ...


class ToolsBusy(ToolError, public="Too many tools are still running."): ...


class TooManyToolCalls(ToolError, public="The model requested more tool calls than are allowed."): ...


class ToolNotStarted(ToolError, public="There was not enough time left to run the tool."): ...


class ToolOutcomeUnknown(ToolError, public="The tool was interrupted, and its outcome is unknown."): ...


class WebhookFailed(OmniAgentError, status=502, public="The webhook could not be delivered."): ...


class Unavailable(
    OmniAgentError, status=503, retry_after=2.0, public="The service is not available right now. Try again in a moment."
): ...


class StorageError(Unavailable, public="The conversation store reported an error. Try again in a moment."): ...


class StorageUnavailable(StorageError, public="The conversation store cannot be reached. Try again in a moment."): ...


class StorageConflict(
    StorageError, public="Another request changed this conversation at the same time. Try again."
): ...


class StorageRejected(StorageError): ...


class TurnLost(StorageError, public="This answer was interrupted, and the conversation continued without it."): ...


class RegistryUnavailable(Unavailable, public="Turns cannot be started right now. Try again in a moment."): ...


class RegistryMisconfigured(ConfigurationError, RegistryUnavailable, status=500, code="configuration_error"):
    retry_after = None


class QueueUnavailable(Unavailable, public="The request cannot be queued right now. Try again in a moment."): ...


class NoQueue(QueueUnavailable, public="This deployment has no summary queue: SUMMARY_QUEUE_URL is not set."):
    retry_after = None


class NoRunQueue(NoQueue, public="This deployment does not support background turns: RUN_QUEUE_URL is not set."): ...


class SecretsUnavailable(
    Unavailable, public="The service cannot read its configuration right now. Try again in a moment."
): ...


class IdentityUnavailable(Unavailable, public="Your token cannot be checked right now. Try again in a moment."): ...
