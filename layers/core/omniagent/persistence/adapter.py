"""`MongoBackendAdapter`: from settings to a working store, once per process."""

import asyncio

from omniagent.errors import ConfigurationError
from omniagent.persistence.connection import MongoDB
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.store import ConversationStore


class MongoBackendAdapter:
    """Opens MongoDB for the process and hands out the store.

    adapter = MongoBackendAdapter("mongodb://127.0.0.1:27017")
    store = await adapter.initialize()
    ...
    await adapter.shutdown()
    """

    def __init__(self, uri: str, database: str = "omniagent", *, timeout_seconds: float = 8.0) -> None:
        if not uri:
            raise ConfigurationError("no MongoDB address: set MONGODB_URI, or MONGODB_SECRET_ARN on Lambda")
        self._uri = uri
        self._database = database
        self._timeout_seconds = timeout_seconds
        self._mongo: MongoDB | None = None
        self._store: ConversationStore | None = None
        self._opening = asyncio.Lock()

    async def initialize(self, models: DocumentModels = DocumentModels()) -> ConversationStore:
        """Check the document classes, connect, and return the store. Later calls return the same one."""
        models.check()
        async with self._opening:
            if self._store is None:
                self._mongo, self._store = await self._open(models)
            return self._store

    async def shutdown(self) -> None:
        """Close the connection. The adapter can be initialized again afterwards."""
        async with self._opening:
            mongo, self._mongo, self._store = self._mongo, None, None
            if mongo is not None:
                await mongo.close()

    async def _open(self, models: DocumentModels) -> tuple[MongoDB, ConversationStore]:
        mongo = MongoDB(self._uri, self._database, timeout_seconds=self._timeout_seconds)
        try:
            await mongo.init(models.all())
        except BaseException:
            await mongo.close()
            raise
        return mongo, ConversationStore(mongo.client, models, timeout_seconds=self._timeout_seconds)
