"""Errors of models and tools: they end the turn, or the model corrects itself."""

from omniagent.errors.omniagent_error import OmniAgentError


class ModelError(OmniAgentError):
    """The model gave no usable answer. The turn ends with the fallback text."""

    status = 502
    public = "The model could not answer. Try again in a moment."

    def __init__(self, detail: str = "", *, api_text: str = "", api_status: int | None = None, param: str = "") -> None:
        super().__init__(detail)
        self.api_text = api_text
        """The API's own message. It may quote the prompt, so it is not part of `str(error)`, which is logged."""
        self.api_status = api_status
        """The HTTP status of the API's answer."""
        self.param = param
        """The field of the request that the API names."""


class ModelUnavailable(ModelError):
    """Unreachable, overloaded or silent."""


class ModelAuthError(ModelError):
    """The key was refused."""


class ModelRejected(ModelError):
    """The model's API refused the request."""


class ModelStreamBroken(ModelError):
    """The stream ended early."""


class EmptyAnswer(ModelError):
    """Neither text nor a tool call."""


class AnswerTooLong(ModelError):
    public = "The answer was too long. Try a smaller request."


class InvalidOutput(ModelError):
    """The detail tells the model what to correct."""

    public = "The model's answer did not match the expected format. Try again."


class StepLimitReached(ModelError):
    public = "The answer needed more steps than are allowed. Try a smaller request."


class ToolError(OmniAgentError):
    """A tool call failed. The model reads `detail`; the stream shows only the public text.

    A tool raises it to tell the model what to correct: `raise ToolError("unknown city")`.
    """

    public = "The tool reported an error."


class UnknownTool(ToolError):
    public = "The model called a tool that does not exist."


class InvalidArguments(ToolError):
    public = "The model called the tool with invalid arguments."


class ToolTimeout(ToolError):
    public = "The tool took too long."


class ToolFailed(ToolError):
    public = "The tool failed."


class ToolsBusy(ToolError):
    """Every thread for sync tools is in use, most likely by calls that hang."""

    public = "Too many tools are still running."


class TooManyToolCalls(ToolError):
    public = "The model requested more tool calls than are allowed."


class ToolNotStarted(ToolError):
    public = "There was not enough time left to run the tool."


class ToolOutcomeUnknown(ToolError):
    """The process died while it ran the tool. Only a tool with `retry_safe=True` is run again."""

    public = "The tool was interrupted, and its outcome is unknown."
