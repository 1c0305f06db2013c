"""`MongoCounter`: counts the spending of users in MongoDB, for servers without AWS that share a database."""

import time
from collections.abc import Callable
from typing import Any

from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from omniagent.budget.spending import Spending, SpendingCounter
from omniagent.messages import Usage
from omniagent.persistence.mongo_registry import reachable
from omniagent.persistence.store import ConversationStore


class MongoCounter(SpendingCounter):
    """One document per user, with the counts of one day and one minute. The driver repeats no write twice."""

    def __init__(self, store: ConversationStore, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._users = store.sessions.database["omniagent_spending"]
        self._has_index = False

    async def add(self, user_id: str, usage: Usage) -> Spending:
        tokens = usage.total_tokens
        return await self._change({"_id": user_id}, tokens=tokens, estimated=tokens if usage.estimated else 0)

    async def count_request(self, user_id: str, limit: int) -> Spending:
        now = self.nothing()
        is_full = {"day": now.day, "minute": now.minute, "requests": {"$gte": limit}}
        while True:
            try:
                return await self._change({"_id": user_id, "$nor": [is_full]}, requests=1)
            except DuplicateKeyError:  # it is full, or another process has just counted the user's first request
                if (spent := await self.read(user_id)).requests >= limit:
                    raise spent.too_many_requests() from None

    async def read(self, user_id: str) -> Spending:
        with reachable():
            found = await self._users.find_one({"_id": user_id})
        return self._spending(found or {})

    async def _change(
        self, user: dict[str, Any], *, tokens: int = 0, estimated: int = 0, requests: int = 0
    ) -> Spending:
        now = self.nothing()
        is_today = {"$eq": ["$day", now.day]}
        is_now = {"$and": [is_today, {"$eq": ["$minute", now.minute]}]}
        change = {
            "tokens": {"$add": [{"$cond": [is_today, "$tokens", 0]}, tokens]},
            "estimated": {"$add": [{"$cond": [is_today, "$estimated", 0]}, estimated]},
            "requests": {"$add": [{"$cond": [is_now, "$requests", 0]}, requests]},
            "minute": now.minute,
            "day": now.day,
            "expires_at": now.next_day,
        }
        with reachable():
            if not self._has_index:
                await self._users.create_index("expires_at", expireAfterSeconds=0)  # MongoDB skips one that exists
                self._has_index = True
            changed = await self._users.find_one_and_update(
                user, [{"$set": change}], upsert=True, return_document=ReturnDocument.AFTER
            )
        return self._spending(changed or {})

    def _spending(self, found: dict[str, Any]) -> Spending:
        now = self.nothing()
        if found.get("day") != now.day:
            return now
        requests = found["requests"] if found["minute"] == now.minute else 0
        return Spending(now.at, found["tokens"], found["estimated"], requests)
