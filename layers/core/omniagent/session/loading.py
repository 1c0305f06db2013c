"""Reads what a turn starts from: the session, the message that a request names, and the window of its path.

The live state is read first, then the history: a message that moves meanwhile is found in the history.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from omniagent.session.live import RollingSummary, SessionHead, SessionMessage, SessionState, never_arrived, turns_of
from omniagent.session.query import Query
from omniagent.session.tree import MAX_LINEAGE, ROOT, Place
from omniagent.settings import Settings


class History(Protocol):
    """The reads of a `SessionManager` that a turn starts from."""

    @property
    def settings(self) -> Settings: ...
    async def head(self) -> SessionHead | None: ...
    async def path(self, at: Place, *, limit: int | None = None) -> Sequence[SessionMessage]: ...
    async def find(self, *ids: str, at: Place | None = None, anywhere: bool = False) -> Sequence[SessionMessage]: ...
    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]: ...
    async def end_of(self, place: Place) -> Place: ...
    async def node(self, node: str) -> SessionMessage | None: ...
    async def latest_summary(self, at: Place) -> RollingSummary | None: ...


async def load(session: History, query: Query | None) -> SessionState:
    """See `SessionManager.load`."""
    head = await session.head()
    if head is None:
        return SessionState()
    query = query or Query(regenerate=True)
    # A turn that goes on after it waited has an answer in the history, which messages have joined.
    at = head.leaf if head.running is None else head.running.place
    window = _window(session, head, head.tip)
    found, state = await asyncio.gather(session.find(*query.ids, at=at), window) if query.ids else ((), await window)
    if head.waiting is not None:
        is_latest = state.answer is not None and state.answer.node == head.waiting.id
        state = replace(state, waiting=state.answer if is_latest else await session.node(head.waiting.id))
    if query.regenerate:
        # The answer counts before its message.
        target = _named(found, query.replaces) or _named(found, query.message_id)
        is_edited = any(each.holds(query.message_id) and not each.is_same(query) for each in found)
        if not is_edited and not never_arrived(head, query, target):
            return await _again(session, state, target)
    parent = _named(found, query.parent)
    earlier = await _earlier(session, head, query, found, parent)
    if earlier is None:
        return await _going_on(session, state, await _after(session, head, query, parent))
    if earlier.role == "assistant" or earlier.is_same(query):
        return await _again(session, state, earlier)
    return await _going_on(session, replace(state, earlier=earlier), earlier.place.before(earlier.parent))


def _named(found: Sequence[SessionMessage], name: str | None) -> SessionMessage | None:
    """Return the newest message with this id, or the answer that a message with it has joined."""
    named = [each for each in found if name and (name in (each.id, each.node) or each.holds(name))]
    return named[-1] if named else None


async def _window(session: History, head: SessionHead, at: Place) -> SessionState:
    """Read the window of a path: one turn more than the model is shown."""
    limit = 2 * session.settings.context_max_turns + 1 + at.order % 2
    messages, summary = await asyncio.gather(session.path(at, limit=limit), session.latest_summary(at))
    messages = with_open(head, messages, at)
    last = {each.role: each for each in messages if each.turn_number == at.turn_number}
    return SessionState(
        head=head,
        after=at,
        summary=summary,
        turns=turns_of(messages),
        question=last.get("user"),
        answer=last.get("assistant"),
    )


def with_open(head: SessionHead, messages: Sequence[SessionMessage], at: Place) -> list[SessionMessage]:
    """Add the message that is being answered, if it ends this path."""
    turn = head.turn
    question = turn.message if turn is not None else None
    if question is None or question.node != at.node or any(each.node == at.node for each in messages):
        return list(messages)
    return [*messages, question]


async def _earlier(
    session: History,
    head: SessionHead,
    query: Query,
    found: Sequence[SessionMessage],
    parent: SessionMessage | None,
) -> SessionMessage | None:
    """Return the stored message that a new one repeats or edits: after its parent, if it names one."""
    name = query.message_id
    named = [each for each in found if _named([each], name)]
    after = parent.node if parent is not None and parent.role == "assistant" else "" if query.parent == "" else None
    if after is not None:
        named = [each for each in named if each.role == "assistant" or each.parent == after]
        if not named and after != head.leaf.node:
            children = (await session.children(after)).get(after, ())
            nodes = [child.node for child in children if child.id == name]
            named = list(await session.find(*nodes[-1:])) if nodes else []
    elif not named and name and head.branches:
        # The same message, sent again after another branch became the active one, or any on a path too long to know.
        is_long = len(head.tip.lineage) == MAX_LINEAGE
        named = [each for each in await session.find(name, anywhere=True) if is_long or each.is_same(query)]
    on_path = [each for each in named if head.tip.leads_from(each.place)]
    return next(reversed(on_path or named), None)


async def _after(session: History, head: SessionHead, query: Query, parent: SessionMessage | None) -> Place:
    """Return the place that a new message follows. A parent that is not stored is the latest message."""
    if query.parent == "":
        return ROOT
    if parent is None:
        return head.leaf
    answer = parent.place if parent.role == "assistant" else await _answer_place(session, head, parent)
    return answer or parent.place


async def _answer_place(session: History, head: SessionHead, question: SessionMessage) -> Place | None:
    """Return the place of a message's answer: on the active path, else the newest."""
    answers = (await session.children(question.node)).get(question.node, ())
    places = [answer.place for answer in answers]
    on_path = [place for place in places if head.leaf.leads_from(place)]
    return next(reversed(on_path or places), None)


async def _going_on(session: History, state: SessionState, at: Place) -> SessionState:
    """Return the state for a new message after this place."""
    if at == state.after:
        return state
    # The place of a deleted message is not used again while other branches begin there.
    window, end = await asyncio.gather(_window(session, state.head, at), session.end_of(at))
    return replace(window, is_end=end.node == at.node, earlier=state.earlier, waiting=state.waiting)


async def _again(session: History, state: SessionState, earlier: SessionMessage | None) -> SessionState:
    """Return the state for another answer to a stored message, in a branch of its own.

    `earlier` is the message, an answer to it, or the answer that it joined. None: the latest message.
    """
    question, answer = state.question, state.answer
    if earlier is not None and earlier.role == "assistant":
        is_latest = question is not None and question.node == earlier.parent
        question, answer = (question, answer or earlier) if is_latest else (await session.node(earlier.parent), earlier)
    elif earlier is not None and (question is None or question.node != earlier.node):
        place = await _answer_place(session, state.head, earlier)
        question, answer = earlier, await session.node(place.node) if place is not None else None
    if question is None:
        return replace(state, question=None, answer=answer, is_end=False, earlier=earlier)
    at = question.place
    window = state if question is state.question else await _window(session, state.head, at)
    return replace(
        window, after=at, is_end=False, earlier=earlier, question=question, answer=answer, waiting=state.waiting
    )
