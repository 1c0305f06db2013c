"""The offline model as a server: in a thread for tests, or as a process."""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Self

import uvicorn

from local.model.journal import Journal, Recorded
from local.model.server import build_app

KEEP_ALIVE_SECONDS = 60
"""Longer than a client keeps an idle connection: the server never closes one that is just being used again."""


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open the port at once: a client that connects before the server runs simply waits."""
    listener = socket.create_server((host, port), backlog=256)
    # Connections take it over. asyncio would set it only on sockets of a listener that it made itself, and without it
    # every answer on a kept connection waits 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}/v1"


def make_server(
    journal: Journal,
    tokens_per_second: float | None = None,
    log_level: str | None = None,
    shutdown_dates: Mapping[str, str] | None = None,
) -> uvicorn.Server:
    """A uvicorn server that does not wait long for stalled streams when it is asked to stop."""
    return uvicorn.Server(
        uvicorn.Config(
            build_app(tokens_per_second=tokens_per_second, journal=journal, shutdown_dates=shutdown_dates),
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level=log_level,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
    )


class OfflineModel:
    """The model on a free loopback port, in a thread, while the context is open.

    `base_url` is what the OpenAI SDK wants. `requests` holds every request made and `count` their number, `disconnects`
    counts the streams whose client left before the end. `shutdown_dates` are announced in the list of models.
    """

    def __init__(self, tokens_per_second: float | None = None) -> None:
        self._journal = Journal(keep_requests=True)
        self.shutdown_dates: dict[str, str] = {}
        self._server = make_server(self._journal, tokens_per_second, shutdown_dates=self.shutdown_dates)
        self._listener = listen()
        self.base_url = url_of(self._listener)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="offline-model", daemon=True
        )

    @property
    def requests(self) -> list[Recorded]:
        return self._journal.requests

    @property
    def counted(self) -> list[int]:
        """What the model has counted, in the order of the responses' ends."""
        return self._journal.counted

    @property
    def count(self) -> int:
        return self._journal.count

    @property
    def disconnects(self) -> int:
        return self._journal.disconnects

    @property
    def active(self) -> int:
        return self._journal.active

    async def until(self, happened: Callable[[Journal], bool], seconds: float = 10) -> None:
        """Wait until the model has seen it, such as `lambda journal: journal.disconnects == 1`."""
        await asyncio.to_thread(self._journal.wait_for, happened, seconds)

    def stop(self) -> None:
        """End every stream, and the server."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)
