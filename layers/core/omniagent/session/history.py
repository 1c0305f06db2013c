"""Reads a session's messages as they are shown: the active path, or the path to any message."""

from collections.abc import Sequence

from omniagent.errors import NotFound
from omniagent.session.live import SessionHead, SessionMessage, with_siblings
from omniagent.session.loading import with_open
from omniagent.session.manager import SessionManager


async def read_history(
    session: SessionManager, *, turns: int, before: int | None, branch: str | None
) -> Sequence[SessionMessage]:
    """See `Runner.history`."""
    head = await session.head()
    if head is None:
        return []
    is_open = head.running is not None and branch == head.tip.node
    end = head.tip if branch is None or is_open else (await named(session, head, branch)).place
    at = end if before is None else end.up_to(before - 1)
    path = await session.path(at, first=max(1, at.turn_number - turns + 1)) if at.order > 1 else []
    messages = with_open(head, path, at)
    children = await session.children(*{message.parent for message in messages})
    return [with_siblings(message, children.get(message.parent, ())) for message in messages]


async def named(session: SessionManager, head: SessionHead, name: str) -> SessionMessage:
    """Return the message with this node, or that the active path calls so. Raises `NotFound`."""
    found = await session.find(name, at=head.tip)
    if not found:
        raise NotFound
    return found[-1]
