"""Messages as the AI SDK's `UIMessage`, for the OpenAPI documents. `protocol.ui_messages` writes them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema


class ShownTextPart(BaseModel):
    type: Literal["text"]
    text: str
    state: Literal["done"] | None = None


class ShownReasoningPart(BaseModel):
    type: Literal["reasoning"]
    id: str
    text: str
    state: Literal["done"]


class ShownStepPart(BaseModel):
    """A model call begins."""

    type: Literal["step-start"]


class ShownApproval(BaseModel):
    """An approval of a tool call, asked for or decided."""

    id: str
    approved: bool | None = None
    reason: str | None = Field(None, description="Why it was approved or denied.")
    requestReason: str | None = Field(None, description="Why the call needs approval.")  # noqa: N815 - the client's name


class ShownToolPart(BaseModel):
    """A tool call: `tool-<name>`."""

    type: str = Field(pattern="^tool-")
    toolCallId: str  # noqa: N815 - the client's name
    state: Literal[
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
    ]
    input: Any = None
    rawInput: Any = Field(None, description="What the model wrote instead of JSON.")  # noqa: N815 - the client's name
    output: Any = None
    errorText: str | None = None  # noqa: N815 - the client's name
    approval: ShownApproval | None = None


class ShownSourceUrlPart(BaseModel):
    type: Literal["source-url"]
    sourceId: str  # noqa: N815 - the client's name
    url: str
    title: str | None = None


class ShownSourceDocumentPart(BaseModel):
    type: Literal["source-document"]
    sourceId: str  # noqa: N815 - the client's name
    mediaType: str  # noqa: N815 - the client's name
    title: str
    filename: str | None = None


class ShownDataPart(BaseModel):
    """Data of a tool (`data-<name>`), and `data-steering`: a user's message that joined the answer."""

    type: str = Field(pattern="^data-")
    id: str | None = None
    data: Any


class ShownSteeringPart(BaseModel):
    """A user's message that joined the answer, with `x-ai-sdk: 7`."""

    type: Literal["steering-message"]
    id: str
    parts: list[ShownTextPart]


class ShownMessage(BaseModel):
    """A `UIMessage` of the AI SDK."""

    id: str
    role: Literal["user", "assistant"]
    parts: list[
        ShownTextPart
        | ShownReasoningPart
        | ShownStepPart
        | ShownToolPart
        | ShownSourceUrlPart
        | ShownSourceDocumentPart
        | ShownDataPart
        | ShownSteeringPart
    ]
    metadata: dict[str, Any] | None = None


ShownMessageJson = Annotated[dict[str, Any], WithJsonSchema({"allOf": [{"$ref": "#/components/schemas/ShownMessage"}]})]
"""A message that is written as it is. Only the document knows its fields."""
