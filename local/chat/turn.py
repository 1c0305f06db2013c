"""One turn at the terminal: its events are shown, Ctrl-C stops it on the server."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from local.chat.api import ApiError, ChatApi, ConnectionLost, Json
from local.chat.view import View

RETRY_SECONDS = 0.3
INTERRUPTED = 130


class ShownTurn:
    """Shows a turn of a session to its end, whatever happens to the connection."""

    def __init__(self, api: ChatApi, view: View, session_id: str) -> None:
        """Name the session."""
        self._api = api
        self._view = view
        self._session_id = session_id
        self._ended = threading.Event()
        self._stopping = False
        self.is_waiting = False

    def show(self, events: Iterator[Json]) -> bool:
        """Show the events and return whether there were any. A second Ctrl-C quits the program."""
        seen = False
        with _on_interrupt(self._interrupted):
            try:
                for event in events:
                    seen = True
                    self._show_event(event)
            except ConnectionLost:
                self._view.note("(reconnected; this is the answer from its start)")
                seen = self._show_again() or seen
            finally:
                self._ended.set()
        return seen

    def _show_again(self) -> bool:
        seen = False
        for event in self._api.resume(self._session_id):
            seen = True
            self._show_event(event)
        if not seen:
            for message in self._api.messages(self._session_id):
                self._view.message(message)
        return seen

    def _show_event(self, event: Json) -> None:
        self._view.event(event)
        if event["type"] == "finish":
            self.is_waiting = event.get("messageMetadata", {}).get("status") == "waiting"

    def _interrupted(self) -> None:
        if self._stopping:
            raise SystemExit(INTERRUPTED)
        self._stopping = True
        # In a thread, so that the stream is read to its end.
        threading.Thread(target=self._stop, name="stop", daemon=True).start()

    def _stop(self) -> None:
        """Repeat the stop request until it succeeds: right after the message there is no turn to stop yet."""
        while not self._ended.is_set():
            try:
                self._api.cancel(self._session_id)
            except ApiError:
                self._ended.wait(RETRY_SECONDS)
            else:
                return


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call `act` instead of interrupting."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        act()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
