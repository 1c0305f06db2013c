"""Ends the transactions that dead processes left open.

MongoDB keeps a transaction open for a minute after its client was killed, and its writes stay locked, so the session
could not be answered for that long. A process that meets such a lock ends the transaction.
"""

import logging
from typing import Any

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import OperationFailure

logger = logging.getLogger(__name__)

APP_NAME = "omniagent"
# The statements of a live transaction follow each other at once. If a live one is ended, its driver retries it.
IDLE_SECONDS = 1.0


async def end_orphans(client: AsyncMongoClient[Any]) -> None:
    """End the package's idle transactions. MongoDB lists only those of the client's own database user."""
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
        # A shared cluster may forbid it. Then the lock lasts for that minute.
        logger.warning("transactions of dead processes cannot be ended", extra={"cause": str(exc)})
