"""From stored messages and summaries to the shapes of a session's state, and back."""

from omniagent.messages import Usage, close_open_calls
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.documents import Message, Summary
from omniagent.session.manager import RollingSummary, SessionMessage


def session_message(message: Message) -> SessionMessage:
    return SessionMessage(
        id=message.client_message_id,
        role=message.role,
        turn_number=message.turn_number,
        parts=message.parts,
        status=message.status,
        usage=Usage.from_dict(message.usage),
        metadata=message.metadata,
    )


def message_document(models: DocumentModels, key: str, message: SessionMessage) -> Message:
    """Make the document of a message. No stored tool call is without a result."""
    return models.message(
        session_id=key,
        turn_number=message.turn_number,
        role=message.role,
        parts=close_open_calls(message.parts),
        status=message.status,
        client_message_id=message.id,
        usage=message.usage.to_dict() if message.role == "assistant" else {},
        metadata=dict(message.metadata),
    )


def rolling_summary(summary: Summary) -> RollingSummary:
    return RollingSummary(
        content=summary.content,
        token_count=summary.token_count,
        start_turn_number=summary.start_turn_number,
        end_turn_number=summary.end_turn_number,
    )
