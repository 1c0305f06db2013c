"""`ConversationStore`: the collections, and the one way to run a transaction on them."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import pymongo
from beanie import Document
from beanie.odm.utils.dump import get_dict
from beanie.odm.utils.parsing import parse_obj
from pydantic import ValidationError
from pymongo import ReadPreference, ReturnDocument, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from omniagent.errors import ConfigurationError, OmniAgentError, StorageError, StorageRejected
from omniagent.persistence.connection import MongoDB, translated
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.orphans import end_orphans
from omniagent.session.manager import OpenTurns, SessionManager

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Stored = TypeVar("Stored", bound=Document)
Collection = AsyncCollection[dict[str, Any]]
_WRITE_CONFLICT = 112


class ConversationStore:
    """The conversations in MongoDB: what `MongoBackendAdapter.initialize()` returns."""

    def __init__(self, mongo: MongoDB, models: DocumentModels, *, timeout_seconds: float) -> None:
        self._mongo = mongo
        self._timeout_seconds = timeout_seconds
        self.models = models
        self.open_turns = OpenTurns()
        self.users = self._collection(models.user)
        self.sessions = self._collection(models.session)
        self.messages = self._collection(models.message)
        self.summaries = self._collection(models.summary)

    async def transaction(self, work: Callable[[AsyncClientSession], Awaitable[Result]]) -> Result:
        """Run `work` in a transaction, retried by the driver within the time limit.

        It is also the way for a single write of a session: one outside a transaction would wait for the lock of a
        dead process's transaction, one inside meets it and ends it.
        """

        async def attempt(session: AsyncClientSession) -> Result:
            try:
                return await work(session)
            except OperationFailure as exc:
                if exc.code == _WRITE_CONFLICT:
                    await end_orphans(self._mongo.client)
                raise

        with translated(), pymongo.timeout(self._timeout_seconds):
            async with self._mongo.client.start_session() as session:
                return await session.with_transaction(
                    attempt,
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                    read_preference=ReadPreference.PRIMARY,
                )

    async def update_session(self, query: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Change a session that matches, and return it as it is now."""

        async def work(transaction: AsyncClientSession) -> dict[str, Any] | None:
            return await self.sessions.find_one_and_update(
                query, {"$set": changes}, return_document=ReturnDocument.AFTER, session=transaction
            )

        return await self.transaction(work)

    async def fill(self, document: Stored, session: SessionManager) -> Stored:
        """Let the team fill its own fields of a new document."""
        if self.models.fill is None:
            return document
        try:
            filling = self.models.fill(document, session.user, session.category)
            if filling is not None:
                await filling
        except OmniAgentError:
            raise
        except Exception as exc:
            raise ConfigurationError(f"DocumentModels.fill failed for a {type(document).__name__}: {exc!r}") from exc
        return document

    async def fill_or_default(self, make: Callable[[], Stored], session: SessionManager) -> Stored:
        """Make and fill a document that must be stored in any case: what it holds is paid for."""
        try:
            return await self.fill(make(), session)
        except OmniAgentError:
            logger.exception("fields of the team's own keep their defaults")
            return make()

    def _collection(self, model: type[Document]) -> Collection:
        # Not the collection that the class is bound to: that may be another adapter's by now.
        return self._mongo.database[model.get_collection_name()]


def to_bson(document: Document) -> dict[str, Any]:
    """Encode a document as Beanie would insert it."""
    settings = document.get_settings()
    if settings.use_revision:
        document.revision_id = uuid4()
    try:
        encoded: dict[str, Any] = get_dict(document, to_db=True, keep_nulls=settings.keep_nulls)
    except StorageError:
        raise
    except Exception as exc:  # whatever a field's own encoder raises
        raise StorageRejected(f"{type(document).__name__} cannot be stored: {exc!r}") from exc
    return encoded


def from_bson(model: type[Stored], stored: Mapping[str, Any]) -> Stored:
    """Read a document as Beanie would."""
    try:
        parsed: Stored = parse_obj(model, stored)  # type: ignore[assignment]
    except ValidationError as exc:
        raise StorageRejected(f"{model.__name__} {stored.get('_id')!r} cannot be read: {exc}") from exc
    return parsed


def from_bsons(model: type[Stored], stored: Sequence[Mapping[str, Any]]) -> list[Stored]:
    return [from_bson(model, one) for one in stored]
