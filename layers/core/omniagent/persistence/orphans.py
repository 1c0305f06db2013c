"""Ends the transactions that dead processes left open.

MongoDB keeps a transaction open for a minute after its client was killed, and everything that it wrote stays locked:
so long its session could not be answered. Whoever runs into the lock ends it.
"""

import logging
from typing import Any

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import OperationFailure

logger = logging.getLogger(__name__)

APP_NAME = "omniagent"
# The statements of a transaction follow each other at once. One that lives all the same is retried by its driver.
IDLE_SECONDS = 1.0


async def end_orphans(client: AsyncMongoClient[Any]) -> None:
    """End the transactions of ours that nobody has touched for a while. Only our own user's are ever seen."""
    orphan = {
        "type": "idleSession",
        "appName": APP_NAME,
        "transaction.timeInactiveMicros": {"$gt": IDLE_SECONDS * 1_000_000},
    }
    admin = client.get_database("admin", read_preference=ReadPreference.PRIMARY)
    try:
        found = await admin.aggregate([{"$currentOp": {"idleSessions": True}}, {"$match": orphan}])
        sessions = [{"id": operation["lsid"]["id"]} async for operation in found]
        if sessions:
            await admin.command("killSessions", sessions)
            logger.warning("transactions of dead processes ended", extra={"count": len(sessions)})
    except OperationFailure as exc:
        # A shared cluster may not allow it. Then the minute has to pass.
        logger.warning("transactions of dead processes cannot be ended", extra={"cause": str(exc)})
