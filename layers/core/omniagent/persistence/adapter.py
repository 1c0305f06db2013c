"""`MongoBackendAdapter`: from settings to a working store, once per process."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from omniagent.errors import ConfigurationError
from omniagent.persistence.documents import DocumentModels
from omniagent.persistence.mongodb import MongoDB
from omniagent.persistence.store import ConversationStore
from omniagent.session.manager import OpenTurns
from omniagent.settings import Settings

Handler = Callable[[int, FrameType | None], Any] | int | None


class MongoBackendAdapter:
    """Connects the process to MongoDB and provides the store.

    async with MongoBackendAdapter("mongodb://127.0.0.1:27017") as store:
        session = MongoSessionManager(store, "user:ada")

    Missing arguments are read from the environment: MONGODB_URI, MONGODB_DATABASE, MONGODB_TIMEOUT_SECONDS and
    MONGODB_POOL_SIZE. Leaving the block, or `await adapter.shutdown()`, first ends the running turns and waits until
    their answers are stored.
    """

    def __init__(
        self,
        uri: str = "",
        database: str = "",
        *,
        documents: DocumentModels = DocumentModels(),
        timeout_seconds: float | None = None,
        pool_size: int | None = None,
    ) -> None:
        settings = Settings.from_env()
        uri = uri or settings.mongodb_uri
        if not uri:
            raise ConfigurationError("no MongoDB address: set MONGODB_URI, or MONGODB_SECRET_ARN on Lambda")
        if not isinstance(documents, DocumentModels):
            raise ConfigurationError(f"documents must be DocumentModels(…), not {documents!r}")
        self._documents = documents
        self._mongo = partial(
            MongoDB,
            uri,
            database or settings.mongodb_database,
            documents.all(),
            timeout_seconds=timeout_seconds or settings.mongodb_timeout_seconds,
            pool_size=settings.mongodb_pool_size if pool_size is None else pool_size,
        )
        self._store: ConversationStore | None = None
        self._opening = asyncio.Lock()
        self._handlers: dict[int, tuple[Handler, Handler]] = {}
        """By signal: the previous one, and ours."""
        self._ending: set[asyncio.Task[None]] = set()

    async def initialize(self) -> ConversationStore:
        """Connect and return the store. Later calls return the same one."""
        async with self._opening:
            if self._store is None:
                mongo = self._mongo()
                await mongo.open()
                self._store = ConversationStore(mongo, self._documents)
            return self._store

    async def build_indexes(self) -> None:
        """Build the indexes that are missing, however long it takes.

        `initialize()` creates those of small collections only, because requests wait for it. A build goes on if this
        process ends; calling it again waits for the same build.
        """
        await (await self.initialize()).mongo.build_indexes()

    async def shutdown(self) -> None:
        """End the running turns, wait until each is stored, and close the connection.

        The adapter can be initialized again afterwards.
        """
        async with self._opening:
            store, self._store = self._store, None
            if store is None:
                return
            try:
                await store.open_turns.finish()
            finally:
                self._restore_handlers()
                await store.mongo.close()

    def end_turns_on(self, *signals: int) -> None:
        """On each of these signals, such as `signal.SIGTERM`, end the running turns in order.

        Call it after `initialize()`, in the main thread. The previous handler is called as well; if it would end the
        process at once, it is called after all answers are stored. `shutdown()` restores it.
        """
        if self._store is None:
            raise ConfigurationError("call `await adapter.initialize()` before end_turns_on()")
        loop, turns = asyncio.get_running_loop(), self._store.open_turns
        for number in set(signals) - set(self._handlers):
            previous: Handler = signal.getsignal(number)

            def handle(number: int, frame: FrameType | None, previous: Handler = previous) -> None:
                loop.call_soon_threadsafe(self._end, turns, number, previous)
                if callable(previous):
                    previous(number, frame)

            signal.signal(number, handle)
            self._handlers[number] = previous, handle

    async def __aenter__(self) -> ConversationStore:
        return await self.initialize()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    def _restore_handlers(self) -> None:
        """Restore the previous handlers, except where ours has been replaced since."""
        for number, (previous, ours) in self._handlers.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, previous)
        self._handlers.clear()

    def _end(self, turns: OpenTurns, number: int, previous: Handler) -> None:
        turns.shut_down()
        if previous == signal.SIG_DFL:
            # The default would kill the process now, so it is applied after the answers are stored.
            task = asyncio.get_running_loop().create_task(self._end_process(turns, number))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end_process(self, turns: OpenTurns, number: int) -> None:
        try:
            await turns.finish()
        finally:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
