"""Reads what a turn starts from: the session, the messages that a request names, and the window of its path.

The live state is read first, then the history: a message that moves meanwhile is found in the history. A message that
goes on where the conversation ends, or repeats its latest, needs no further read.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from omniagent.errors import NotFound
from omniagent.session.live import (
    MAX_TURNS,
    RollingSummary,
    SessionHead,
    SessionMessage,
    SessionState,
    never_arrived,
    turns_of,
    with_siblings,
)
from omniagent.session.query import Query
from omniagent.session.tree import MAX_LINEAGE, ROOT, Place
from omniagent.settings import Settings


class Messages(Protocol):
    """The messages of a session's history."""

    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]: ...
    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]: ...
    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]: ...


class History(Messages, Protocol):
    """The reads of a `SessionManager` that a turn starts from."""

    settings: Settings

    async def head(self) -> SessionHead | None: ...
    async def end_of(self, place: Place) -> Place: ...
    async def node(self, node: str) -> SessionMessage | None: ...
    async def latest_summary(self, at: Place) -> RollingSummary | None: ...


async def load(session: History, query: Query | None = None) -> SessionState:
    """Read what a turn starts from that answers this message, or goes on after the latest."""
    head = await session.head()
    if head is None:
        return SessionState()
    query = query or Query(regenerate=True)
    waiting = [head.waiting.id] if head.waiting is not None else []
    # A turn that goes on after it waited has an answer in the history, which messages have joined.
    end = head.leaf if head.running is None else head.running.place
    # The same message may be sent again after another branch became the active one.
    anywhere = query.message_id if head.branches and query.parent != head.leaf.node else ""
    found, state = await asyncio.gather(
        session.find(*query.ids, *waiting, at=end, anywhere=anywhere), _window(session, SessionState(head), head.tip)
    )
    state = replace(state, waiting=next((each for each in found if each.node in waiting), None))
    known = [each for each in found if each.node in query.ids or end.leads_from(each.place)]
    if query.regenerate:
        # The answer counts before its message.
        target = _last(_named(known, query.replaces) or _named(known, query.message_id))
        is_edited = any(each.holds(query.message_id) and not each.is_same(query) for each in known)
        if not is_edited and not never_arrived(head, query, target):
            return await _again(session, replace(state, earlier=target))
    parent = _last(_named(known, query.parent))
    elsewhere = [each for each in found if each not in known]
    repeated = await _repeated(session, query, known, elsewhere, parent, tip=head.tip)
    earlier = _last(repeated, on=head.tip)
    if earlier is None:
        return await _going_on(session, state, await _after(session, head, query, parent))
    state = replace(state, earlier=earlier)
    if earlier.role == "assistant" or earlier.is_same(query):
        return await _again(session, state)
    return await _going_on(session, state, earlier.place.before(earlier.parent))


def _named(found: Sequence[SessionMessage], name: str | None) -> list[SessionMessage]:
    """Return the messages with this id, and the answers that a message with it has joined."""
    return [each for each in found if name and (name in (each.id, each.node) or each.holds(name))]


def _last(found: Sequence[SessionMessage], *, on: Place | None = None) -> SessionMessage | None:
    """Return the newest of these, if possible one that is on the path to a place."""
    preferred = [each for each in found if on is not None and on.leads_from(each.place)]
    return next(reversed(preferred or found), None)


async def _window(session: History, state: SessionState, at: Place) -> SessionState:
    """Read the window of a path: one turn more than the model is shown."""
    limit = 2 * session.settings.context_max_turns + 1 + at.order % 2
    path, summary = await asyncio.gather(session.path(at, limit=limit), session.latest_summary(at))
    messages = with_open(state.head, path, at)
    last = {each.role: each for each in messages if each.turn_number == at.turn_number}
    return replace(
        state,
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


async def _repeated(
    session: History,
    query: Query,
    known: Sequence[SessionMessage],
    elsewhere: Sequence[SessionMessage],
    parent: SessionMessage | None,
    *,
    tip: Place,
) -> Sequence[SessionMessage]:
    """Return the stored messages that a new one repeats or edits: after its parent, if it names one.

    `known` are those that were found on the path, or by their node.
    """
    here, elsewhere = _named(known, query.message_id), _named(elsewhere, query.message_id)
    if parent is not None and parent.role == "assistant":
        after = parent.node
    elif query.parent == "":
        after = ""
    else:
        is_long = len(tip.lineage) == MAX_LINEAGE  # the path has messages that were looked for elsewhere
        return here or [each for each in elsewhere if is_long or each.is_same(query)]
    here = [each for each in here if each.role == "assistant" or each.parent == after]
    found = here or [each for each in elsewhere if each.parent == after]
    if found or not elsewhere:
        return found
    # The newest message with this id follows another one.
    nodes = [child.node for child in await _children(session, after) if child.id == query.message_id]
    return await session.find(*nodes[-1:])


async def _after(session: History, head: SessionHead, query: Query, parent: SessionMessage | None) -> Place:
    """Return the place that a new message follows. A parent that is not stored is the latest message."""
    if query.parent == "":
        return ROOT
    if parent is None:
        return head.leaf
    answer = _last(await _children(session, parent.node), on=head.leaf) if parent.role == "user" else None
    return (answer or parent).place


async def _children(session: History, node: str) -> Sequence[SessionMessage]:
    return (await session.children(node)).get(node, ())


async def _going_on(session: History, state: SessionState, at: Place) -> SessionState:
    """Return the state for a new message after this place."""
    if at == state.after:
        return state
    # The place of a deleted message is not used again while other branches begin there.
    window, end = await asyncio.gather(_window(session, state, at), session.end_of(at))
    return replace(window, is_end=end.node == at.node)


async def _again(session: History, state: SessionState) -> SessionState:
    """Return the state for another answer to a stored message, in a branch of its own.

    `state.earlier` is the message, an answer to it, or the answer that it joined. None: the latest message.
    """
    earlier, question, answer = state.earlier, state.question, state.answer
    if earlier is not None and (question is None or question.node not in (earlier.node, earlier.parent)):
        question, answer = earlier, None
        if earlier.role == "assistant":
            question = await session.node(earlier.parent)
        elif (stored := _last(await _children(session, earlier.node), on=state.head.leaf)) is not None:
            answer = await session.node(stored.node)
    if earlier is not None and earlier.role == "assistant":
        answer = answer or earlier
    if question is not None and question is not state.question:
        state = await _window(session, state, question.place)
    after = question.place if question is not None else state.after
    return replace(state, after=after, is_end=False, question=question, answer=answer)


async def read_history(
    session: Messages,
    head: SessionHead,
    *,
    turns: int = MAX_TURNS,
    limit: int | None = None,
    before: int | None = None,
    branch: str | None = None,
) -> list[SessionMessage]:
    """Read messages as they are shown, in order: the newest `turns` of the active path, or of that to any message.

    `limit`: only so many messages. Each names the one before it as its parent, whose own parent may be deleted.
    """
    is_open = head.running is not None and branch == head.tip.node
    end = head.tip if branch is None or is_open else (await named(session, head, branch)).place
    at = end if before is None else end.up_to(before - 1)
    first = max(1, at.turn_number - turns + 1)
    path = await session.path(at, first=first, limit=limit) if at.order > 1 else ()
    messages = with_open(head, path, at)[-limit if limit else None :]
    children = await session.children(*{message.parent for message in messages}) if messages else {}
    parents = [messages[0].parent if first > 1 else "", *(message.node for message in messages)] if messages else []
    return [
        replace(with_siblings(message, children.get(message.parent, ())), parent=parent)
        for message, parent in zip(messages, parents, strict=False)
    ]


async def named(session: Messages, head: SessionHead, name: str) -> SessionMessage:
    """Return the message with this node, or that the active path calls so. Raises `NotFound`."""
    found = await session.find(name, at=head.tip)
    if not found:
        raise NotFound
    return found[-1]
