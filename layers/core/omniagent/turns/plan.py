"""Decides what a message asks for: a new turn, the latest turn again, or the answer that is stored already."""

from dataclasses import dataclass

from omniagent.errors import InvalidRequest, NotFound, NotRegenerable
from omniagent.protocol.plain_json import plain_text
from omniagent.session.identity import check_id, new_id
from omniagent.session.state import SessionMessage, SessionState
from omniagent.settings import Settings


@dataclass(frozen=True, slots=True)
class Query:
    """What a user asks. The same `message_id` never makes a second turn."""

    text: str = ""
    message_id: str = ""
    regenerate: bool = False
    """Answer the latest turn again, in place. `message_id` and `text` then name the message that was asked."""
    replaces: str | None = None
    """With `regenerate`: the answer to replace. The same one again returns the answer that replaced it."""

    @property
    def claim_id(self) -> str:
        """What a retry of the same request has in common with it."""
        if self.regenerate:
            return f"regenerate:{self.replaces or self.message_id}"
        return self.message_id

    @property
    def known_id(self) -> str | None:
        """The id by which the session may know this message already."""
        return self.message_id or self.replaces

    def checked(self, settings: Settings) -> "Query":
        """Return the query as it can be stored. Raises `InvalidRequest`."""
        text = plain_text(self.text)
        if not self.regenerate and not text.strip():
            raise InvalidRequest("The message is empty.")
        if len(text) > settings.max_message_chars:
            raise InvalidRequest(f"The message is longer than {settings.max_message_chars} characters.")
        if self.message_id:
            check_id(self.message_id, "message id")
        message_id = self.message_id or ("" if self.regenerate else new_id())
        return Query(text, message_id, self.regenerate, self.replaces)


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What a turn is to do."""

    number: int
    message_id: str
    text: str
    again: bool = False
    """The turn exists already and is answered once more."""
    previous: SessionMessage | None = None
    """The answer that the turn has already."""


def plan_turn(query: Query, state: SessionState, settings: Settings) -> TurnPlan | SessionMessage:
    """Return the plan, or the stored answer to replay. Raises a `RequestError` when the session cannot serve it."""
    if query.regenerate:
        return _plan_regeneration(query, state, settings)
    earlier = state.earlier
    if earlier is None:
        return _plan_new(query, state, settings)
    if earlier.role != "user":
        raise InvalidRequest("This message id belongs to an answer. Choose another one.")
    if earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable  # an older answer is replayed before this is asked
    if state.answer is not None and state.answer.status == "complete":
        return state.answer
    return TurnPlan(earlier.turn_number, earlier.id, earlier.text, again=True, previous=state.answer)


def _plan_new(query: Query, state: SessionState, settings: Settings) -> TurnPlan:
    if state.head.latest_turn_number >= settings.max_turns_per_session:
        raise InvalidRequest("This session has reached its last turn. Start a new one.")
    return TurnPlan(state.head.latest_turn_number + 1, query.message_id, query.text)


def _plan_regeneration(query: Query, state: SessionState, settings: Settings) -> TurnPlan | SessionMessage:
    earlier, question, answer = state.earlier, state.question, state.answer
    if earlier is not None and earlier.turn_number < state.head.latest_turn_number:
        raise NotRegenerable
    if earlier is None and query.message_id and query.text.strip():
        return _plan_new(query, state, settings)  # its send never arrived: it is asked now
    if question is None or (earlier is None and query.message_id):
        raise NotFound
    if answer is not None and query.replaces and query.replaces == answer.metadata.get("replaces"):
        return answer
    return TurnPlan(question.turn_number, question.id, question.text, again=True, previous=answer)


def older_turn(query: Query, state: SessionState) -> int | None:
    """Return the number of the turn, before the latest, that answered this very message."""
    earlier = state.earlier
    if query.regenerate or earlier is None or earlier.role != "user":
        return None
    return earlier.turn_number if earlier.turn_number < state.head.latest_turn_number else None
