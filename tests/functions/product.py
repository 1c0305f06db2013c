"""The three functions as real processes, and everything that a test wants to know about them."""

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from pymongo import MongoClient
from pymongo.database import Database

from local.aws import Aws
from local.emulator import Emulator
from local.model import OfflineModel
from local.stack import StackOptions, local_stack
from tests.functions.calls import Json, User
from tests.functions.wire import Wire, wire_to

# Values that must never be in a log. The URI has its in the place of a database's name, which is not used.
HIDDEN_KEY = "the-hidden-model-key"
HIDDEN_IN_URI = "hidden-in-the-uri"
# Shorter ones may well be words of a log line.
TELLING_LENGTH = 16


@dataclass
class Product:
    """A running stack in a database of its own."""

    emulator: Emulator
    aws: Aws
    model: OfflineModel
    wire: Wire
    database: Database[Json]
    http: httpx.AsyncClient
    lines: list[tuple[str, str]]
    secrets: list[str] = field(default_factory=lambda: [HIDDEN_KEY, HIDDEN_IN_URI])

    def user(self) -> User:
        return User(self.emulator, self.http)

    def stored(self, user: User) -> list[Json]:
        """The messages of the user's session as MongoDB holds them, in order."""
        return list(self.database.messages.find({"session_id": user.key}).sort([("turn_number", 1), ("role", -1)]))

    def is_answering(self, user: User) -> bool:
        """Whether the user's session is held by a turn."""
        [table] = self.aws.dynamodb.list_tables()["TableNames"]
        key = {"session_id": {"S": user.key}, "item": {"S": "turn"}}
        return "Item" in self.aws.dynamodb.get_item(TableName=table, Key=key, ConsistentRead=True)

    def check_privacy(self) -> None:
        """Nothing that was said, and nothing secret, is in any log."""
        log = "\n".join(line for _, line in self.lines)
        said = {text for text in self._said() if len(text) >= TELLING_LENGTH}
        told = [text for text in {*said, *self.secrets} if text in log or json.dumps(text)[1:-1] in log]
        assert not told, f"the log tells {told}"

    def _said(self) -> Iterator[str]:
        for collection in ("messages", "summaries"):
            for document in self.database[collection].find({}, {"parts": 1, "content": 1}):
                yield from _texts(document)
        for session in self.database.sessions.find({"name": {"$type": "string"}}, {"name": 1}):
            yield session["name"]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.splitlines()
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item) if name not in {"_id", "call_id"} else ()
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for item in value:
            yield from _texts(item)


@asynccontextmanager
async def running_product(mongod: str, aws: Aws, model: OfflineModel, **options: Any) -> AsyncIterator[Product]:
    """Run the functions, with further options of the stack. At the end their logs are checked."""
    lines: list[tuple[str, str]] = []
    name = f"functions_{uuid.uuid4().hex[:12]}"
    emulator = {"on_line": lambda function, line: lines.append((function, line))} | options.pop("emulator", {})
    parameters = {"MongoDatabase": name} | options.pop("parameters", {})
    # A turn looks for its stop often, a model that failed is not asked again, and the log tells all it can.
    environment = {"TICK_SECONDS": "0.05", "MODEL_MAX_RETRIES": "0", "LOG_LEVEL": "DEBUG"}
    environment |= options.pop("environment", {})
    limits = httpx.Limits(max_connections=100)
    async with wire_to(model.base_url) as wire, httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as http:
        stack_options = StackOptions(
            mongodb_uri=mongod.replace("/?", f"/{HIDDEN_IN_URI}?"),
            aws=aws,
            openai_api_key=HIDDEN_KEY,
            openai_base_url=wire.url,
            parameters=parameters,
            environment=environment,
            emulator=emulator,
            **options,
        )
        with MongoClient[Json](mongod, tz_aware=True) as client:
            async with local_stack(stack_options) as stack:
                product = Product(stack.emulator, stack.aws, model, wire, client[name], http, lines)
                yield product
            product.check_privacy()
            client.drop_database(name)
