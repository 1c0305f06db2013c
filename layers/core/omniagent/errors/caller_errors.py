"""Errors that the caller of the API must act on."""

from datetime import datetime

from omniagent.errors.omniagent_error import OmniAgentError


class RequestError(OmniAgentError):
    """The caller must change the request. The detail is written for the caller and is public."""

    status = 400
    code = "bad_request"
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
    public = "The request body is not valid JSON."


class Unauthenticated(RequestError):
    status = 401
    public = "Send valid credentials."

    def __init__(self, detail: str = "", *, challenge: str = "", reason: str = "") -> None:
        super().__init__(detail)
        self.challenge = challenge
        """The value of the WWW-Authenticate header."""
        self.reason = reason


class Forbidden(RequestError):
    """The caller is known, but may not do this."""

    status = 403
    public = "You may not do this."

    def __init__(self, detail: str = "", *, reason: str = "") -> None:
        super().__init__(detail)
        self.reason = reason


class NotFound(RequestError):
    status = 404
    public = "It does not exist, or you have no access to it."


class SessionErased(NotFound):
    public = "This session, or all data of its user, is being deleted. Start a new one in a few minutes."


class UnknownRequest(NotFound):
    public = "There is no request with this id, or you have no access to it."


class NotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"
    public = "This path does not support the method."


class TurnInProgress(RequestError):
    status = 409
    public = "This session is still answering another message. Wait for that answer or cancel it."
    retry_after = 1.0


class NoRunningTurn(RequestError):
    status = 409
    public = "No turn is running in this session."


class NotRegenerable(RequestError):
    status = 409
    public = "Only the last answer of a session can be regenerated."


class NotWaiting(RequestError):
    status = 409
    public = "This answer is no longer waiting: the conversation continued, or the answer was stopped."


class ReplyConflict(RequestError):
    status = 409
    public = "This request already has a different reply. The first reply counts."


class RequestExpired(RequestError):
    status = 410
    public = "This request expired before it was answered. Ask again."


class PayloadTooLarge(RequestError):
    status = 413
    public = "The request body is too large."


class UnsupportedMediaType(RequestError):
    status = 415
    public = "Send application/json."


class InvalidRequest(RequestError):
    status = 422
    public = "The request body does not match the expected schema."


class TooManyTurns(RequestError):
    status = 429
    public = "You have too many turns running at once. Wait for one to finish."
    retry_after = 2.0


class QueueFull(RequestError):
    """The session has `MAX_QUEUED_MESSAGES` already."""

    status = 429
    public = "This session has too many queued messages. Wait for one of them to be answered."
    retry_after = 5.0


class TooManyReaders(RequestError):
    """Too many requests follow running answers; each holds a process."""

    status = 429
    public = "Too many connections are reading your answers at once. Close a tab or try again in a moment."
    retry_after = 5.0


class BudgetExceeded(RequestError):
    """The user's tokens of the day are spent."""

    status = 429
    public = "You have used up your tokens for today."

    def __init__(self, detail: str = "", *, retry_after: float | None = None, reset_at: datetime | None = None) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.reset_at = reset_at
        """When the budget resets."""


class TooManyRequests(BudgetExceeded):
    """The user has reached the requests allowed per minute."""

    public = "You have made too many requests in this minute."
