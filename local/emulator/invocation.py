"""One invocation of a function, and its answer."""

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from typing import Self

CHUNKS_IN_FLIGHT = 16


class FunctionFailed(Exception):
    """The function did not answer, or its answer is incomplete. `body` is the error as Lambda reports it."""

    def __init__(self, error_type: str, body: bytes) -> None:
        """Keep the type and the JSON document of the error."""
        super().__init__(f"{error_type}: {body.decode(errors='replace')}")
        self.error_type = error_type
        self.body = body

    @classmethod
    def platform(cls, error_type: str, message: str) -> Self:
        """Return an error that the platform reports, not the function."""
        return cls(error_type, json.dumps({"errorType": error_type, "errorMessage": message}).encode())


class Answer:
    """A function's answer, whose bytes may still be arriving.

    The writer waits when the reader is slow, as on Lambda.
    """

    def __init__(self, content_type: str, *, streamed: bool) -> None:
        """Open an answer."""
        self.content_type = content_type
        self.streamed = streamed
        self.ended = False
        self.left = False
        self._slots = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
        self._items: asyncio.Queue[bytes | FunctionFailed | None] = asyncio.Queue()

    async def write(self, chunk: bytes) -> None:
        """Add a part."""
        await self._slots.acquire()
        self._items.put_nowait(chunk)

    def end(self, failure: FunctionFailed | None = None) -> None:
        """End the answer, or fail it. Only the first call counts."""
        if not self.ended:
            self.ended = True
            self._items.put_nowait(failure)

    def leave(self) -> None:
        """Stop reading. The writer is told with its next chunk."""
        self.left = True
        self._slots.release()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts as they arrive. Raises FunctionFailed if the answer is incomplete."""
        while (item := await self._items.get()) is not None:
            if isinstance(item, FunctionFailed):
                raise item
            self._slots.release()
            yield item

    async def read(self) -> bytes:
        """Return the complete answer."""
        return b"".join([chunk async for chunk in self.chunks()])


class Invocation:
    """One event for a function, with its ids and its answer."""

    def __init__(self, payload: bytes, *, arn: str, client_context: str = "") -> None:
        """Create the ids of the invocation."""
        self.payload = payload
        self.arn = arn
        self.client_context = client_context
        self.request_id = str(uuid.uuid4())
        self.invocation_id = str(uuid.uuid4())
        self.trace_id = f"Root=1-{int(time.time()):08x}-{secrets.token_hex(12)};Parent={secrets.token_hex(8)};Sampled=0"
        self.started = 0.0
        self.deadline_ms = 0
        self._answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def begin(self, timeout: float) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.deadline_ms = int((time.time() + timeout) * 1000)

    async def answer(self) -> Answer:
        """Wait until the function begins to answer. Raises FunctionFailed if it fails before."""
        return await self._answer

    def answered(self, answer: Answer) -> None:
        """Set the function's answer."""
        if not self._answer.done():
            self._answer.set_result(answer)

    def fail(self, failure: FunctionFailed) -> None:
        """End the invocation with an error, before or during its answer."""
        if self._answer.done():
            if not self._answer.cancelled() and self._answer.exception() is None:
                self._answer.result().end(failure)
        else:
            self._answer.set_exception(failure)
            # Marks the exception as retrieved: the caller may be gone.
            self._answer.exception()

    @property
    def begun(self) -> bool:
        """Whether the function has begun to answer or has failed."""
        return self._answer.done()

    @property
    def ended(self) -> bool:
        """Whether the answer is complete or has failed."""
        return self.begun and (self._answer.exception() is not None or self._answer.result().ended)
