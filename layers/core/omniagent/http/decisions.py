"""The body of `POST /chat/approvals/{id}`."""

from pydantic import BaseModel, Field, StrictBool

MAX_REASON_LENGTH = 2_000


class Decision(BaseModel):
    """Approve or deny a waiting tool call."""

    approved: StrictBool
    reason: str | None = Field(
        None, max_length=MAX_REASON_LENGTH, description="Shown to the model if the call is denied."
    )
