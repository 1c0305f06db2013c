"""`MongoBackendAdapter`: from settings to a working store, once per process."""

import asyncio
from types import TracebackType

from omniagent.errors import ConfigurationError
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.shutdown_signals import ShutdownSignals
from omniagent.persistence.store import ConversationStore, MongoDB
from omniagent.settings import Settings


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
        self._uri = uri or settings.mongodb_uri
        if not self._uri:
            raise ConfigurationError("no MongoDB address: set MONGODB_URI, or MONGODB_SECRET_ARN on Lambda")
        if not isinstance(documents, DocumentModels):
            raise ConfigurationError(f"documents must be DocumentModels(…), not {documents!r}")
        self._database = database or settings.mongodb_database
        self._documents = documents
        self._timeout_seconds = timeout_seconds or settings.mongodb_timeout_seconds
        self._pool_size = settings.mongodb_pool_size if pool_size is None else pool_size
        self._mongo: MongoDB | None = None
        self._store: ConversationStore | None = None
        self._opening = asyncio.Lock()
        self._signals = ShutdownSignals()

    async def initialize(self) -> ConversationStore:
        """Connect and return the store. Later calls return the same one."""
        async with self._opening:
            if self._store is None:
                self._mongo, self._store = await self._open()
            return self._store

    async def build_indexes(self) -> None:
        """Build the indexes that are missing, however long it takes.

        `initialize()` creates those of small collections only, because requests wait for it. A build goes on if this
        process ends; calling it again waits for the same build.
        """
        await self.initialize()
        if self._mongo is not None:
            await self._mongo.build_indexes()

    async def shutdown(self) -> None:
        """End the running turns, wait until each is stored, and close the connection.

        The adapter can be initialized again afterwards.
        """
        async with self._opening:
            store, mongo = self._store, self._mongo
            self._store = self._mongo = None
            try:
                if store is not None:
                    await store.open_turns.finish()
            finally:
                self._signals.restore()
                if mongo is not None:
                    await mongo.close()

    def end_turns_on(self, *signals: int) -> None:
        """On each of these signals, such as `signal.SIGTERM`, end the running turns in order.

        Call it after `initialize()`, in the main thread. The previous handler is called as well; if it would end the
        process at once, it is called after all answers are stored. `shutdown()` restores it.
        """
        if self._store is None:
            raise ConfigurationError("call `await adapter.initialize()` before end_turns_on()")
        self._signals.watch(self._store.open_turns, signals)

    async def __aenter__(self) -> ConversationStore:
        return await self.initialize()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def _open(self) -> tuple[MongoDB, ConversationStore]:
        documents = self._documents
        mongo = MongoDB(
            self._uri,
            self._database,
            documents.all(),
            timeout_seconds=self._timeout_seconds,
            pool_size=self._pool_size,
        )
        try:
            await mongo.open()
            return mongo, ConversationStore(mongo, documents, timeout_seconds=self._timeout_seconds)
        except BaseException:
            await mongo.close()
            raise
