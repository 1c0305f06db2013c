"""How users and sessions are keyed.

The user's id is derived from the name they authenticate with, and a session's key starts with it. So every key is
known before anything is read, and no key can reach another user's session.
"""

import hashlib
import re
import uuid

from omniagent.errors import InvalidRequest

ID_PATTERN = r"^[A-Za-z0-9_.~-]{1,128}$"
_ID = re.compile(ID_PATTERN)


def new_id() -> str:
    return uuid.uuid4().hex


def check_id(value: str, what: str) -> str:
    """Return the id, or refuse one that is not a plain token."""
    if not _ID.fullmatch(value):
        raise InvalidRequest(f"{what} must be 1 to 128 of the characters A-Z a-z 0-9 _ . ~ -")
    return value


def user_id_of(client_id: str) -> str:
    return hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def session_key(user_id: str, session_id: str) -> str:
    return f"{user_id}:{session_id}"


def public_session_id(key: str) -> str:
    """Return the id that the client knows a session by."""
    return key.partition(":")[2]
