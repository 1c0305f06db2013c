"""Indexes, created once per schema, not on every cold start.

A note per schema names its indexes. An index that neither this release nor the one deployed before it declares is
dropped by `make migrate`: during a deploy, and after a rollback, the release before needs its own.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from beanie import Document
from beanie.odm.utils.typing import get_index_attributes
from pymongo import DESCENDING, IndexModel
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

logger = logging.getLogger(__name__)

SCHEMA_COLLECTION = "omniagent_schema"
SMALL_COLLECTION = 10_000
"""Documents. The indexes of a smaller collection are built within a request."""


async def ensure_indexes(
    database: AsyncDatabase[Any], documents: Sequence[type[Document]], *, wait: bool = False
) -> None:
    """Create the indexes of bound documents. A request does not, if exactly these were created before.

    A request does not wait for a long build: without `wait`, the indexes of large collections are left to
    `make migrate`. Beanie itself would also create those of the base classes, and with them unused collections.
    """
    declared: dict[str, list[IndexModel]] = {}
    for document in documents:
        declared.setdefault(document.get_collection_name(), []).extend(_indexes(document))
    # Changes exactly when an index changes.
    described = [(name, [index.document for index in indexes]) for name, indexes in declared.items()]
    version = hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]
    schema = database[SCHEMA_COLLECTION]
    if await schema.find_one({"_id": version}) and not wait:
        return
    left = []
    for name, indexes in declared.items():
        if indexes and not wait and await database[name].estimated_document_count() > SMALL_COLLECTION:
            left.append(name)
        elif indexes:
            await database[name].create_indexes(indexes)
    if left:
        logger.warning("indexes may be missing: run the command `migrate`", extra={"collections": left})
        return
    names = {name: [index.document["name"] for index in indexes] for name, indexes in declared.items()}
    note = {"indexes": names, "deployed_at": datetime.now(UTC)}
    await schema.update_one({"_id": version}, {"$set": note}, upsert=True)
    if wait:
        await _drop_obsolete(database)


async def _drop_obsolete(database: AsyncDatabase[Any]) -> None:
    """Drop what only schemas before the last two have declared, and forget these schemas.

    Indexes that no schema has declared are somebody else's. A release that comes back creates its own again.
    """
    schema = database[SCHEMA_COLLECTION]
    notes = await schema.find().sort("deployed_at", DESCENDING).to_list()
    needed, obsolete = (
        {(collection, name) for note in part for collection, names in note.get("indexes", {}).items() for name in names}
        for part in (notes[:2], notes[2:])
    )
    for collection, name in sorted(obsolete - needed):
        with suppress(OperationFailure):  # it is gone already
            await database[collection].drop_index(name)
            logger.info("index dropped", extra={"collection": collection, "index": name})
    await schema.delete_many({"_id": {"$in": [note["_id"] for note in notes[2:]]}})


def _indexes(document: type[Document]) -> list[IndexModel]:
    """Return the indexes that a class declares, in its `Settings` and with `Indexed` fields."""
    settings = document.get_settings()
    bases = [base for base in reversed(document.mro()) if issubclass(base, Document) and base is not Document]
    classes = bases if settings.merge_indexes else [document]
    declared = [index.index for each in classes for index in each.get_settings().indexes]
    for name, field in document.model_fields.items():
        if attributes := get_index_attributes(field):
            direction, options = attributes
            declared.append(IndexModel([(field.alias or name, direction)], **options))
    return list({index.document["name"]: index for index in declared}.values())
