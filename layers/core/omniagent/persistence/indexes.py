"""Indexes, made once per schema and not on every cold start."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from beanie import Document, init_beanie
from beanie.odm.utils.typing import get_index_attributes
from pymongo.asynchronous.database import AsyncDatabase

from omniagent.persistence.documents import Session, Summary

SCHEMA_COLLECTION = "omniagent_schema"
# What earlier versions made and this one must not find: a draft has the span of a summary.
_OBSOLETE = (
    (Summary, "session_id_1_end_turn_number_-1"),
    (Summary, "session_id_1_start_turn_number_1"),
    (Session, "user_id_1_updated_at_-1__id_-1"),
    (Session, "running"),
)


async def ensure_indexes(database: AsyncDatabase[Any], documents: Sequence[type[Document]]) -> None:
    """Make the indexes of documents that Beanie has bound, unless these very indexes were made before."""
    version = _schema_version(documents)
    schema = database[SCHEMA_COLLECTION]
    if await schema.find_one({"_id": version}):
        return
    await _upgrade(documents)
    await init_beanie(database, document_models=list(documents))
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
    """A fingerprint of all indexes: it changes exactly when there is something to make."""
    described = [(document.get_collection_name(), _described(document)) for document in documents]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:16]


def _described(document: type[Document]) -> list[Any]:
    fields = {name: get_index_attributes(field) for name, field in document.model_fields.items()}
    return [
        *(index.index.document for index in document.get_settings().indexes),
        *((name, attributes) for name, attributes in fields.items() if attributes),
    ]
