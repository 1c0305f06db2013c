"""`python -m scripts.rename_users ISSUER`: gives the users of 0.1's `jwt` mode, and their sessions, their new ids.

0.1 identified a user by the token's subject alone. MONGODB_URI and MONGODB_DATABASE select the database. Run it while
the stack is not in use: a session with a running turn is left for the next run. It can be stopped and repeated.
"""

import sys
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError

from omniagent.http.auth import token_user
from omniagent.session.manager import public_session_id, session_key, user_id_of
from omniagent.settings import Settings

Json = dict[str, Any]


@dataclass
class Renamed:
    """The numbers of renamed users and sessions, and the keys of the sessions that could not be moved."""

    users: int = 0
    sessions: int = 0
    left: tuple[str, ...] = ()


def rename_users(database: Database[Json], issuer: str) -> Renamed:
    """Rename every user of 0.1 to the same subject of this issuer."""
    done = Renamed()
    for user in database["users"].find({"client_id": {"$regex": "^jwt:"}}):
        subject = user["client_id"].removeprefix("jwt:")
        if subject.startswith(f"{issuer} "):
            continue
        client_id = token_user(issuer, subject)
        left = _move_sessions(database, user["_id"], user_id_of(client_id), done)
        if left:
            done.left += left
            continue
        # The user may exist already under the new id.
        renamed = {**user, "_id": user_id_of(client_id), "client_id": client_id, "running": []}
        database["users"].update_one({"_id": renamed.pop("_id")}, {"$setOnInsert": renamed}, upsert=True)
        database["users"].delete_one({"_id": user["_id"]})
        done.users += 1
    return done


def _move_sessions(database: Database[Json], before: str, after: str, done: Renamed) -> tuple[str, ...]:
    """Move a user's sessions. Returns the keys of those that stay: their turn runs, or their new id is taken."""
    left = []
    for session in database["sessions"].find({"user_id": before}):
        key = session_key(after, public_session_id(session["_id"]))
        moved = {**session, "_id": key, "user_id": after}
        if session.get("active_turn_id") is not None or not _insert(database, moved):
            left.append(session["_id"])
            continue
        for name in ("messages", "summaries"):
            database[name].update_many({"session_id": session["_id"]}, {"$set": {"session_id": key}})
        database["sessions"].delete_one({"_id": session["_id"]})
        done.sessions += 1
    return tuple(left)


def _insert(database: Database[Json], session: Json) -> bool:
    """Insert a session. Returns whether it is stored as given, now or by an earlier run that was stopped."""
    try:
        database["sessions"].insert_one(session)
    except DuplicateKeyError:
        return database["sessions"].find_one({"_id": session["_id"]}) == session
    return True


def main(arguments: list[str]) -> int:
    """Run the command."""
    settings = Settings.from_env()
    if len(arguments) != 1 or not settings.mongodb_uri:
        print("usage: MONGODB_URI=… python -m scripts.rename_users ISSUER", file=sys.stderr)
        return 2
    with MongoClient[Json](settings.mongodb_uri, tz_aware=True) as client:
        done = rename_users(client[settings.mongodb_database], arguments[0])
    print(f"{done.users} users and {done.sessions} sessions renamed")
    for key in done.left:
        print(f"left as it is: session {key} is being answered, or its id is taken", file=sys.stderr)
    return 1 if done.left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
