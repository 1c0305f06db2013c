"""The ids of users, sessions and messages."""

import hashlib
import re
import uuid

from omniagent.errors import ConfigurationError, InvalidRequest

ID_PATTERN = r"^[A-Za-z0-9_~-][A-Za-z0-9_.~-]{0,127}$"
"""No leading dot: clients resolve `/sessions/..` before they send it, and could not reach that session again."""
ID_TEXT = "1 to 128 of the characters A-Z a-z 0-9 _ . ~ - and begin with no dot"
_ID = re.compile(ID_PATTERN)


def new_id() -> str:
    return uuid.uuid4().hex


def first_version() -> int:
    """Return the version of a new session. Random: a late write of a deleted session with the same id must not fit."""
    return uuid.uuid4().int >> 80


def check_id(value: str, what: str) -> str:
    """Return the id. Raises `InvalidRequest` if it is not a plain token."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidRequest(f"{what} must be {ID_TEXT}")
    return value


def is_id(value: str) -> bool:
    """Whether the text is a plain token."""
    return _ID.fullmatch(value) is not None


def user_id_of(client_id: str) -> str:
    if not isinstance(client_id, str) or not client_id.strip():
        raise ConfigurationError(f"the user of a session is {client_id!r:.100}: pass a name, as text")
    return hashlib.blake2b(client_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def session_key(user_id: str, session_id: str) -> str:
    return f"{user_id}:{session_id}"


def public_session_id(key: str) -> str:
    """Return the session id that the client uses."""
    return key.partition(":")[2]
