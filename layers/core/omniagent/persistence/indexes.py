"""Indexes, created once per schema, not on every cold start."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from beanie import Document
from beanie.odm.utils.typing import get_index_attributes
from pymongo import IndexModel
from pymongo.asynchronous.database import AsyncDatabase

from omniagent.persistence.documents import Session, Summary

SCHEMA_COLLECTION = "omniagent_schema"
# Indexes of earlier versions that must be dropped: a draft has the same span as a summary.
_OBSOLETE = (
    (Summary, "session_id_1_end_turn_number_-1"),
    (Summary, "session_id_1_start_turn_number_1"),
    (Session, "user_id_1_updated_at_-1__id_-1"),
    (Session, "running"),
)


async def ensure_indexes(database: AsyncDatabase[Any], documents: Sequence[type[Document]]) -> None:
    """Create the indexes of bound documents, unless exactly these were created before.

    Beanie itself would also create those of the base classes, and with them unused collections.
    """
    version = _schema_version(documents)
    schema = database[SCHEMA_COLLECTION]
    if await schema.find_one({"_id": version}):
        return
    await _upgrade(documents)
    for document in documents:
        if indexes := _indexes(document):
            await document.get_pymongo_collection().create_indexes(indexes)
    made = {"documents": [document.__name__ for document in documents]}
    await schema.update_one({"_id": version}, {"$set": made}, upsert=True)


async def _upgrade(documents: Sequence[type[Document]]) -> None:
    for document in documents:
        collection = document.get_pymongo_collection()
        obsolete = {name for kind, name in _OBSOLETE if issubclass(document, kind)}
        for name in obsolete & set(await collection.index_information() if obsolete else ()):
            await collection.drop_index(name)
        if issubclass(document, Summary):
            await collection.update_many({"draft": {"$exists": False}}, {"$set": {"draft": False}})


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
    asked = [index.index for each in classes for index in each.get_settings().indexes]
    for name, field in document.model_fields.items():
        if attributes := get_index_attributes(field):
            direction, options = attributes
            asked.append(IndexModel([(field.alias or name, direction)], **options))
    return list({index.document["name"]: index for index in asked}.values())
