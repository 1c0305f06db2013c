"""Indexes, created once per schema, not on every cold start."""

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from beanie import Document
from beanie.odm.utils.typing import get_index_attributes
from pymongo import IndexModel
from pymongo.asynchronous.database import AsyncDatabase

logger = logging.getLogger(__name__)

SCHEMA_COLLECTION = "omniagent_schema"
SMALL_COLLECTION = 10_000
"""Documents. The indexes of a smaller collection are built within a request."""


async def ensure_indexes(
    database: AsyncDatabase[Any], documents: Sequence[type[Document]], *, wait: bool = False
) -> None:
    """Create the indexes of bound documents, unless exactly these were created before.

    A request does not wait for a long build: without `wait`, the indexes of large collections are left to
    `make migrate`. Beanie itself would also create those of the base classes, and with them unused collections.
    """
    version = _schema_version(documents)
    schema = database[SCHEMA_COLLECTION]
    if await schema.find_one({"_id": version}):
        return
    left = []
    for document in documents:
        collection = document.get_pymongo_collection()
        if not (indexes := _indexes(document)):
            continue
        if wait or await collection.estimated_document_count() <= SMALL_COLLECTION:
            await collection.create_indexes(indexes)
        else:
            left.append(collection.name)
    if left:
        logger.warning("indexes may be missing: run the command `migrate`", extra={"collections": left})
        return
    names = [document.__name__ for document in documents]
    await schema.update_one({"_id": version}, {"$set": {"documents": names}}, upsert=True)


def _schema_version(documents: Sequence[type[Document]]) -> str:
    """Return a fingerprint of all indexes, which changes exactly when an index changes."""
    described = [
        (document.get_collection_name(), [index.document for index in _indexes(document)]) for document in documents
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]


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
