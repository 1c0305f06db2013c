"""What passes between the functions and their servers, read just far enough to recognise it."""

import json
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import bson

Json = dict[str, Any]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TARGET = re.compile(rb"\r\nx-amz-target: *[^.\r]+\.(\w+)", re.IGNORECASE)
_OP_MSG = 2013


@dataclass(frozen=True)
class Message:
    """A request: what it asks for, and its arguments."""

    name: str
    raw: bytes = field(repr=False)
    body: Json


Matches = Callable[[Message], bool]


class Wire(ABC):
    """How a protocol's requests follow each other in a stream of bytes."""

    @abstractmethod
    def length(self, data: bytes) -> int | None:
        """Return the length of the first request, None while that cannot be told."""

    @abstractmethod
    def read(self, raw: bytes) -> Message:
        """Read one whole request."""


class Http(Wire):
    """Requests with a body of known length: of DynamoDB, and of the model."""

    def length(self, data: bytes) -> int | None:
        head, end, _ = data.partition(b"\r\n\r\n")
        if not end:
            return None
        length = _LENGTH.search(head)
        return len(head) + len(end) + (int(length[1]) if length else 0)

    def read(self, raw: bytes) -> Message:
        head, _, body = raw.partition(b"\r\n\r\n")
        target = _TARGET.search(head)
        name = target[1].decode() if target else head.split(b" ", 2)[1].decode()
        return Message(name, raw, json.loads(body) if body else {})


class MongoWire(Wire):
    """Commands of MongoDB's OP_MSG. Document sequences are read into the command, as its arguments."""

    def length(self, data: bytes) -> int | None:
        return struct.unpack_from("<i", data)[0] if len(data) >= 4 else None

    def read(self, raw: bytes) -> Message:
        if struct.unpack_from("<i", raw, 12)[0] != _OP_MSG:
            return Message("", raw, {})
        command: Json = {}
        position = 20
        end = len(raw) - (4 if raw[16] & 1 else 0)  # a checksum may follow
        while position < end:
            kind, size = raw[position], struct.unpack_from("<i", raw, position + 1)[0]
            section = raw[position + 1 : position + 1 + size]
            position += 1 + size
            if kind == 0:
                command = {**bson.decode(section), **command}
            else:
                name, _, documents = section[4:].partition(b"\0")
                command[name.decode()] = bson.decode_all(documents)
        return Message(next(iter(command), ""), raw, command)


# What a turn asks of DynamoDB, told apart by its session.


def claim(session: str) -> Matches:
    return lambda message: message.name == "PutItem" and _item(message, "Item") == (session, "turn")


def chunk(session: str, number: int) -> Matches:
    def matches(message: Message) -> bool:
        owner, item = _item(message, "Item")
        return message.name == "PutItem" and owner == session and item.endswith(f"#{number:08d}")

    return matches


def renewal(session: str) -> Matches:
    return lambda message: message.name == "UpdateItem" and _item(message, "Key") == (session, "turn")


def release(session: str) -> Matches:
    return lambda message: message.name == "DeleteItem" and _item(message, "Key") == (session, "turn")


def _item(message: Message, place: str) -> tuple[str, str]:
    """Return the client's session id and the item that a request is about."""
    key = message.body.get(place) or {}
    return key.get("session_id", {}).get("S", "").partition(":")[2], key.get("item", {}).get("S", "")


# What it asks of MongoDB.


def insert(session: str, role: str) -> Matches:
    """The message of one side, on its way into the collection."""

    def matches(message: Message) -> bool:
        documents = message.body.get("documents") or [{}]
        of_session = str(documents[0].get("session_id", "")).partition(":")[2] == session
        return message.name == "insert" and of_session and documents[0].get("role") == role

    return matches


def commit(session: str, role: str) -> Matches:
    """The end of the transaction that inserts the message of one side."""
    inserts = insert(session, role)
    open_transaction: list[tuple[Any, Any]] = []

    def matches(message: Message) -> bool:
        transaction = message.body.get("lsid"), message.body.get("txnNumber")
        if inserts(message):
            open_transaction[:] = [transaction]
        return message.name == "commitTransaction" and transaction in open_transaction

    return matches
