"""The requests of a turn to its servers, recognised by their session."""

from typing import Any

from tests.fixtures.wire_formats import Matches, Message

# What a turn asks of DynamoDB, told apart by its session.


def chunk(session: str, number: int) -> Matches:
    def matches(message: Message) -> bool:
        owner, item = _item(message, "Item")
        return message.name == "PutItem" and owner == session and item.endswith(f"#{number:08d}")

    return matches


def _item(message: Message, place: str) -> tuple[str, str]:
    """Return the client's session id and the item that a request is about."""
    key = message.body.get(place) or {}
    return key.get("session_id", {}).get("S", "").partition(":")[2], key.get("item", {}).get("S", "")


# What any turn asks of either server, and whose it is.


def session_of(message: Message) -> str:
    """Return the client's id of the session that a request is about, empty when it names none."""
    body = message.body
    match message.name:
        case "insert":
            key = body["documents"][0].get("session_id")
        case "update":
            key = body["updates"][0]["q"].get("_id")
        case "findAndModify":
            key = body["query"].get("_id")
        case _:
            return _item(message, "Item")[0] or _item(message, "Key")[0]
    return str(key).partition(":")[2]


def of_any_turn(*names: str) -> Matches:
    """A request of one of these names that tells whose it is."""
    return lambda message: message.name in names and bool(session_of(message))


# What it asks of MongoDB.


def begin(session: str) -> Matches:
    """The write that begins a turn of a session which there is already, with its question."""
    return lambda message: _changes(message, session).get("turn") is not None


def takeover(session: str) -> Matches:
    """The write by which another process takes a turn over, or goes on with one that waited."""
    return lambda message: "turn.run" in _changes(message, session)


def _changes(message: Message, session: str) -> dict[str, Any]:
    """Return the fields that an update of a session sets."""
    update = (message.body.get("updates") or [{}])[0]
    is_its_own = str(update.get("q", {}).get("_id", "")).partition(":")[2] == session
    changes: dict[str, Any] = update["u"].get("$set", {}) if message.name == "update" and is_its_own else {}
    return changes


def insert(session: str) -> Matches:
    """The answer, on its way into the collection."""

    def matches(message: Message) -> bool:
        documents = message.body.get("documents") or [{}]
        of_session = str(documents[0].get("session_id", "")).partition(":")[2] == session
        return message.name == "insert" and of_session and any(each.get("role") == "assistant" for each in documents)

    return matches


def commit(session: str) -> Matches:
    """The end of the transaction that inserts the answer."""
    is_insert = insert(session)
    open_transaction: list[tuple[Any, Any]] = []

    def matches(message: Message) -> bool:
        transaction = message.body.get("lsid"), message.body.get("txnNumber")
        if is_insert(message):
            open_transaction[:] = [transaction]
        return message.name == "commitTransaction" and transaction in open_transaction

    return matches
