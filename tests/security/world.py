"""The chat and the sessions function with what they call, and the users that come to them."""

import importlib.util
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from pymongo.database import Database

from local.template import ROOT
from omniagent.aws import services
from omniagent.aws.services import Services
from omniagent.protocol import sse
from omniagent.session.identity import new_id, session_key, user_id_of
from omniagent.settings import Settings
from project import project
from tests.functions.loading import close
from tests.security.function_url import FunctionUrls, Json


@dataclass(frozen=True)
class World:
    """Both functions share the services, and with them the registry of running turns."""

    services: Services
    database: Database[Json]
    chat: ModuleType
    sessions: ModuleType

    @property
    def functions(self) -> dict[str, ModuleType]:
        return {"chat": self.chat, "sessions": self.sessions}

    def user(self, name: str | None = None) -> "User":
        """Somebody named by the backend that signs the requests."""
        name = name or f"user-{new_id()}"
        return User(self.client(headers={"x-user-id": name}), f"user:{name}")

    def client(self, *, signed: bool = True, headers: dict[str, str] | None = None) -> httpx.Client:
        handlers = {name: function.handler for name, function in self.functions.items()}
        return httpx.Client(transport=FunctionUrls(handlers, signed=signed), headers=headers)

    def documents(self) -> dict[str, int]:
        """How many of each there are."""
        return {name: self.database[name].count_documents({}) for name in ("users", "sessions", "messages")}


@dataclass(frozen=True)
class User:
    """A caller with one session in mind, which `{}` stands for in a path."""

    http: httpx.Client
    client_id: str
    session: str = field(default_factory=new_id)

    @property
    def key(self) -> str:
        return session_key(user_id_of(self.client_id), self.session)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        function = "chat" if path.startswith("/chat") else "sessions"
        return self.http.request(method, f"http://{function}{path.replace('{}', self.session)}", **options)

    def post(self, body: Any) -> httpx.Response:
        """Ask with a body of the test's own."""
        return self.call("POST", "/chat", json=body)

    def ask(self, text: str = "Hello", **fields: Any) -> list[Json]:
        """Ask, and return every event of the answer."""
        response = self.post({"session_id": self.session, "query": text} | fields)
        assert response.status_code == 200, response.text
        return list(sse.decode(response.content))

    def messages(self) -> list[Json]:
        response = self.call("GET", "/sessions/{}/messages")
        assert response.status_code == 200, response.text
        found: list[Json] = response.json()["messages"]
        return found


@contextmanager
def open_world(mongodb_uri: str, model_url: str, **settings: Any) -> Iterator[World]:
    """Load the functions anew, on a database of their own. Document classes know one database at a time."""
    chosen: dict[str, Any] = {
        "mongodb_uri": mongodb_uri,
        "mongodb_database": f"test_{uuid.uuid4().hex[:12]}",
        "openai_base_url": model_url,
        "tick_seconds": 0.02,
        "model_max_retries": 0,
    } | settings
    made = Services(project, Settings(**chosen))
    with MongoClient[Json](mongodb_uri, tz_aware=True) as client:
        yield World(made, client[made.settings.mongodb_database], load("chat", made), load("sessions", made))
        close(made)
        client.drop_database(made.settings.mongodb_database)


def load(function: str, made: Services) -> ModuleType:
    """Import a function's app as Lambda does, with the given services in the place of the environment's."""
    path = ROOT / "functions" / function / "app.py"
    spec = importlib.util.spec_from_file_location(f"{function}_under_attack", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_services", lambda _project: made)
        spec.loader.exec_module(module)
    return module
