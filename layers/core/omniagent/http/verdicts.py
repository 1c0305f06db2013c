"""Who decided a message's approvals, and when."""

from typing import Any

from omniagent.messages import ToolPart
from omniagent.persistence.documents import Message


def decided(message: Message) -> dict[str, Any]:
    """Return the metadata `decisions`, by the id of the call: when, and whether by the session's own user.

    Nothing if there is none. Who else decided is not said.
    """
    user_id = message.session_id.partition(":")[0]
    calls = [part for part in message.parts if isinstance(part, ToolPart)]
    decisions = {
        call.call_id: {
            "at": call.request.answered_at.isoformat(),
            "by": "user" if call.request.answered_by == user_id else "other",
        }
        for call in calls
        if call.request is not None and call.request.kind == "approval" and call.request.answered_at is not None
    }
    return {"decisions": decisions} if decisions else {}
