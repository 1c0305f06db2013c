"""Where a stream begins: `startIndex` of WorkflowChatTransport, `Last-Event-ID` of an EventSource."""

import re
from typing import Final

from starlette.requests import Request

from omniagent.ai.result import StreamPosition
from omniagent.errors import InvalidRequest
from omniagent.session.ids import check_id

_INDEX: Final = re.compile(r"-?\d{1,9}")
_END: Final = "end"


def read_position(request: Request, journal: str) -> StreamPosition | None:
    """Return where the client wants to go on. None: at the beginning of the running answer.

    `journal` is what followed the session's id in the path, as in `x-workflow-run-id`.
    """
    if (index := request.query_params.get("startIndex")) is not None:
        if not _INDEX.fullmatch(index):
            raise InvalidRequest("query.startIndex: must be a whole number.")
        seen = int(index)
    elif event_id := request.headers.get("last-event-id"):
        journal, _, number = event_id.rpartition(":")
        if number != _END and not _INDEX.fullmatch(number):
            return None  # another server's
        return StreamPosition(check_id(journal, "the event's journal"), None if number == _END else int(number))
    else:
        seen = 0
    return StreamPosition(journal and check_id(journal, "the run's journal"), seen) if journal or seen else None


class EventIds:
    """Gives each event an id, with which an EventSource goes on when it reconnects by itself."""

    def __init__(self, journal_id: str, message_id: str, seen: int) -> None:
        self._journal = journal_id
        self._end = f"\nid: {journal_id or message_id}:{_END}".encode()
        self._seen = seen

    def __call__(self, frames: bytes) -> bytes:
        return b"\n\n".join(map(self._with_id, frames.split(b"\n\n")))

    def _with_id(self, frame: bytes) -> bytes:
        if frame == b"data: [DONE]":
            return frame + self._end
        if not self._journal or not frame.startswith(b"data: "):
            return frame
        self._seen += 1
        return frame + f"\nid: {self._journal}:{self._seen}".encode()
