"""The words around a match, for the results of a search."""

import re
from collections.abc import Sequence
from typing import Any

import pymongo

from omniagent.errors import StorageUnavailable
from omniagent.persistence.driver_errors import translated
from omniagent.persistence.store import ConversationStore

SECONDS = 0.5
WORDS_AROUND = 40
"""Characters before and after a match."""


async def snippets(store: ConversationStore, keys: Sequence[str], search: str) -> dict[str, str]:
    """Return a passage of each session whose messages contain the text. Without enough time, of none."""
    like = {"$regex": re.escape(search), "$options": "i"}
    pipeline: list[dict[str, Any]] = [
        {"$match": {"session_id": {"$in": list(keys)}, "parts": {"$elemMatch": {"type": "text", "text": like}}}},
        {"$group": {"_id": "$session_id", "parts": {"$first": "$parts"}}},
    ]
    try:
        with translated(), pymongo.timeout(SECONDS):
            found = await (await store.messages.aggregate(pipeline)).to_list()
    except StorageUnavailable:
        return {}
    return {each["_id"]: _passage(each["parts"], search) for each in found}


def _passage(parts: Sequence[dict[str, Any]], search: str) -> str:
    pattern = re.compile(re.escape(search), re.IGNORECASE)
    texts = [part["text"] for part in parts if part["type"] == "text"]
    text, match = next(((text, match) for text in texts if (match := pattern.search(text))), (texts[0], None))
    if match is None:  # MongoDB and Python fold some letters differently
        return ""
    start, end = max(0, match.start() - WORDS_AROUND), match.end() + WORDS_AROUND
    passage = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{passage}{'…' if end < len(text) else ''}"
