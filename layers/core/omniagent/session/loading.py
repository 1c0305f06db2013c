"""Reads what a turn starts from: the session, the message that a request names, and the window of its path.

The live state is read first, then the history: a message that moves meanwhile is found in the history.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from omniagent.session.live import SessionHead, SessionMessage, SessionState, never_arrived, turns_of
from omniagent.session.query import Query
from omniagent.session.summary_store import RollingSummary
from omniagent.session.tree import ROOT, Place
from omniagent.settings import Settings


class History(Protocol):
    """The reads of a `SessionManager` that a turn starts from."""

    @property
    def settings(self) -> Settings: ...
    async def head(self) -> SessionHead | None: ...
    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]: ...
    async def find(self, *ids: str, at: Place | None = None) -> Sequence[SessionMessage]: ...
    async def newest(self, message_id: str) -> SessionMessage | None: ...
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
    found, state = await asyncio.gather(_found(session, head, query), _window(session, head, head.tip))
    if head.waiting is not None:
        is_latest = state.answer is not None and state.answer.node == head.waiting.id
        state = replace(state, waiting=state.answer if is_latest else await session.node(head.waiting.id))
    if query.regenerate:
        target = _target(query, found)
        is_edited = any(each.holds(query.message_id) and not each.is_same(query) for each in found)
        if not is_edited and not never_arrived(head, query, target):
            return await _regenerated(session, state, target)
    parent = _parent(query, found)
    earlier = await _earlier(session, head, query, found, parent)
    if earlier is None:
        return await _going_on(session, state, await _after(session, head, query, parent))
    state = replace(state, earlier=earlier)
    if earlier.role == "assistant" or earlier.is_same(query):
        return await _again(session, state, earlier)
    return await _going_on(session, state, earlier.place.before(earlier.parent))


async def _found(session: History, head: SessionHead, query: Query) -> Sequence[SessionMessage]:
    # A turn that goes on after it waited has an answer in the history, which messages have joined.
    at = head.leaf if head.running is None else head.running.place
    return await session.find(*query.ids, at=at) if query.ids else ()


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
    named = [each for each in found if name and (each.id == name or each.holds(name))]
    after = parent.node if parent is not None and parent.role == "assistant" else "" if query.parent == "" else None
    if after is not None:
        named = [each for each in named if each.role == "assistant" or each.parent == after]
        if not named and after != head.leaf.node:
            children = (await session.children(after)).get(after, ())
            nodes = [child.node for child in children if child.id == name]
            named = list(await session.find(*nodes[-1:])) if nodes else []
    elif not named and name and head.branches:
        # The same message, sent again after another branch became the active one.
        newest = await session.newest(name)
        named = [newest] if newest is not None and newest.is_same(query) else []
    on_path = [each for each in named if head.tip.leads_from(each.place)]
    return next(reversed(on_path or named), None)


def _parent(query: Query, found: Sequence[SessionMessage]) -> SessionMessage | None:
    parents = [each for each in found if query.parent and query.parent in (each.node, each.id)]
    return parents[-1] if parents else None


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


async def _again(session: History, state: SessionState, earlier: SessionMessage) -> SessionState:
    """Return the state for a message that was sent before, or that joined an answer, to answer it again."""
    if earlier.role == "assistant":
        question = await session.node(earlier.parent)
        return await _answering(session, state, question, earlier)
    if state.question is not None and state.question.node == earlier.node:
        return await _answering(session, state, earlier, state.answer)
    place = await _answer_place(session, state.head, earlier)
    return await _answering(session, state, earlier, await session.node(place.node) if place is not None else None)


def _target(query: Query, found: Sequence[SessionMessage]) -> SessionMessage | None:
    """Return the message or the answer that a regeneration names. The answer counts before its message."""
    for name in (query.replaces, query.message_id):
        named = [each for each in found if name and (name in (each.node, each.id) or each.holds(name))]
        if named:
            return named[-1]
    return None


async def _regenerated(session: History, state: SessionState, target: SessionMessage | None) -> SessionState:
    if target is None:
        return await _answering(session, state, state.question, state.answer)
    state = replace(state, earlier=target)
    if target.role == "user":
        return await _again(session, state, target)
    if state.question is not None and state.question.node == target.parent:
        return await _answering(session, state, state.question, state.answer or target)
    return await _answering(session, state, await session.node(target.parent), target)


async def _answering(
    session: History,
    state: SessionState,
    question: SessionMessage | None,
    answer: SessionMessage | None,
) -> SessionState:
    """Return the state for another answer to a stored message: in a branch of its own."""
    if question is None:
        return replace(state, question=None, answer=answer, is_end=False)
    at = question.place
    is_latest = state.question is not None and state.question.node == question.node
    window = state if is_latest else await _window(session, state.head, at)
    return replace(
        window, after=at, is_end=False, earlier=state.earlier, question=question, answer=answer, waiting=state.waiting
    )
