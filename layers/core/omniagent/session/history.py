"""The history of a session, and what a turn starts from: its head, the messages that a request names, its window.

The live state is read first, then the history: a message that moves meanwhile is found in the history. A message that
goes on where the conversation ends, or repeats its latest, needs no further read.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from omniagent.errors import NotFound
from omniagent.session.live import MAX_LINEAGE, MAX_TURNS, ROOT, Place, SessionHead, SessionMessage, SessionState
from omniagent.session.query import Query
from omniagent.session.window import RollingSummary
from omniagent.settings import Settings


class SessionHistory(ABC):
    """Reads one session: its head, and the tree of its messages."""

    settings: Settings
    """Its window limits what `load` reads."""

    @staticmethod
    def now() -> datetime:
        """The clock for leases and for the expiry of requests."""
        return datetime.now(UTC)

    @abstractmethod
    async def head(self, *, erased: bool = False) -> SessionHead | None:
        """Read the session itself: one document. None if it does not exist; `erased`: also if it is being deleted."""

    @abstractmethod
    async def path(self, at: Place, *, first: int = 1, limit: int | None = None) -> Sequence[SessionMessage]:
        """Read the messages on the path to a place, in order: from the turn `first` on, and only the newest `limit`.

        Read after the head, a message that was in the head is not missed while it moves to the history.
        """

    @abstractmethod
    async def find(self, *ids: str, at: Place | None = None, anywhere: str = "") -> Sequence[SessionMessage]:
        """Read messages of the history: the nodes with these ids and, on the path to a place, those that clients call
        so, or the answers that they joined. `anywhere`: also what clients call so in the newest branch that has it.
        """

    @abstractmethod
    async def children(self, *parents: str) -> Mapping[str, Sequence[SessionMessage]]:
        """Read the messages after each of these nodes, in the order of their creation, without their parts."""

    @abstractmethod
    async def tree(self, *, limit: int, after: Place | None = None) -> Sequence[SessionMessage]:
        """Read the messages of all branches, each after its parent: the first `limit`, or those after a place.

        One whose parent was deleted follows the nearest message before that.
        """

    @abstractmethod
    async def end_of(self, place: Place) -> Place:
        """Read the end of the newest branch that leads from a place, or of its own."""

    @abstractmethod
    async def latest_summary(self, at: Place, *, draft: bool = False) -> RollingSummary | None:
        """Read the newest summary on the path to a place, or the newest draft of a rebuild."""

    async def node(self, node: str) -> SessionMessage | None:
        """Read one message of the history by its node: an answer by its id."""
        found = await self.find(node)
        return found[0] if found else None

    async def named(self, head: SessionHead, name: str) -> SessionMessage:
        """Read the message with this node, or that the active path calls so. Raises `NotFound`."""
        found = await self.find(name, at=head.tip)
        if not found:
            raise NotFound
        return found[-1]

    async def shown(
        self,
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
        end = head.tip if branch is None or is_open else (await self.named(head, branch)).place
        at = end if before is None else end.up_to(before - 1)
        first = max(1, at.turn_number - turns + 1)
        path = await self.path(at, first=first, limit=limit) if at.order > 1 else ()
        messages = head.with_open(path, at)[-limit if limit else None :]
        children = await self.children(*{message.parent for message in messages}) if messages else {}
        shown: list[SessionMessage] = []
        for message in messages:
            nodes = list(dict.fromkeys([*(each.node for each in children.get(message.parent, ())), message.node]))
            parent = shown[-1].node if shown else message.parent if first > 1 else ""
            shown.append(replace(message, parent=parent, siblings=tuple(nodes) if len(nodes) > 1 else ()))
        return shown

    async def load(self, query: Query | None = None) -> SessionState:
        """Read what a turn starts from that answers this message, or goes on after the latest."""
        head = await self.head()
        if head is None:
            return SessionState()
        query = query or Query(regenerate=True)
        tip = head.tip
        shown = tip.messages_in(self.settings.context_max_turns + 1)
        # A turn that goes on after it waited has an answer in the history, which messages have joined.
        end = head.leaf if head.running is None else head.running.place
        waiting = [head.waiting.id] if head.waiting is not None else []
        names = [each for each in (query.message_id, query.replaces, query.parent) if each]
        # The same message may be sent again after another branch became the active one.
        anywhere = query.message_id if head.branches and query.parent != head.leaf.node else ""
        found, path, summary = await asyncio.gather(
            self.find(*names, *waiting, at=end, anywhere=anywhere),
            self.path(tip, limit=shown),
            self.latest_summary(tip),
        )
        state = SessionState(head).with_window(tip, path, summary)
        state = replace(state, waiting=next((each for each in found if each.node in waiting), None))
        known = [each for each in found if each.node in names or end.leads_from(each.place)]
        if query.regenerate:
            # The answer counts before its message.
            target = _last(_named(known, query.replaces) or _named(known, query.message_id))
            is_edited = any(each.holds(query.message_id) and not each.is_same(query) for each in known)
            if not is_edited and not never_arrived(head, query, target):
                return await self._again(replace(state, earlier=target))
        parent = _last(_named(known, query.parent))
        elsewhere = [each for each in found if each not in known]
        earlier = _last(await self._repeated(query, known, elsewhere, parent, tip=tip), on=tip)
        if earlier is None:
            return await self._going_on(state, await self._after(head, query, parent))
        state = replace(state, earlier=earlier)
        if earlier.role == "assistant" or earlier.is_same(query):
            return await self._again(state)
        return await self._going_on(state, earlier.place.before(earlier.parent))

    async def _repeated(
        self,
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
        nodes = [child.node for child in await self._children(after) if child.id == query.message_id]
        return await self.find(*nodes[-1:])

    async def _after(self, head: SessionHead, query: Query, parent: SessionMessage | None) -> Place:
        """Return the place that a new message follows. A parent that is not stored is the latest message."""
        if query.parent == "":
            return ROOT
        if parent is None:
            return head.leaf
        answer = _last(await self._children(parent.node), on=head.leaf) if parent.role == "user" else None
        return (answer or parent).place

    async def _children(self, node: str) -> Sequence[SessionMessage]:
        return (await self.children(node)).get(node, ())

    async def _going_on(self, state: SessionState, at: Place) -> SessionState:
        """Return the state for a new message after this place."""
        if at == state.after:
            return state
        # The place of a deleted message is not used again while other branches begin there.
        state, end = await asyncio.gather(self._moved(state, at), self.end_of(at))
        return replace(state, is_end=end.node == at.node)

    async def _moved(self, state: SessionState, at: Place) -> SessionState:
        shown = at.messages_in(self.settings.context_max_turns + 1)
        path, summary = await asyncio.gather(self.path(at, limit=shown), self.latest_summary(at))
        return state.with_window(at, path, summary)

    async def _again(self, state: SessionState) -> SessionState:
        """Return the state for another answer to a stored message, in a branch of its own.

        `state.earlier` is the message, an answer to it, or the answer that it joined. None: the latest message.
        """
        earlier, question, answer = state.earlier, state.question, state.answer
        if earlier is not None and (question is None or question.node not in (earlier.node, earlier.parent)):
            question, answer = earlier, None
            if earlier.role == "assistant":
                question = await self.node(earlier.parent)
            elif (stored := _last(await self._children(earlier.node), on=state.head.leaf)) is not None:
                answer = await self.node(stored.node)
        if earlier is not None and earlier.role == "assistant":
            answer = answer or earlier
        if question is not None and question is not state.question:
            state = await self._moved(state, question.place)
        after = question.place if question is not None else state.after
        return replace(state, after=after, is_end=False, question=question, answer=answer)


def _named(found: Sequence[SessionMessage], name: str | None) -> list[SessionMessage]:
    """Return the messages with this id, and the answers that a message with it has joined."""
    return [each for each in found if name and (name in (each.id, each.node) or each.holds(name))]


def _last(found: Sequence[SessionMessage], *, on: Place | None = None) -> SessionMessage | None:
    """Return the newest of these, if possible one that is on the path to a place."""
    preferred = [each for each in found if on is not None and on.leads_from(each.place)]
    return next(reversed(preferred or found), None)


def never_arrived(head: SessionHead, query: Query, target: SessionMessage | None) -> bool:
    """Whether the message to answer again is new here: it is answered for the first time."""
    is_whole = bool(query.message_id and query.text.strip())
    return query.regenerate and is_whole and target is None and not head.holds(query.message_id)
