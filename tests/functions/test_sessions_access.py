"""Every route of the sessions function, called by everyone who should not and by the one who may."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pymongo.database import Database

from local.model import OfflineModel
from omniagent.aws.services import Services
from omniagent.http.sessions_app import router, sessions_app
from omniagent.messages import TextPart
from omniagent.persistence.store import ConversationStore
from omniagent.session.identity import new_id
from omniagent.session.manager import TurnStart
from omniagent.settings import Settings
from omniagent.turns.lease import Claim
from project import project
from tests.http.issuer import AUDIENCE, Issuer

Json = dict[str, Any]

ROUTES = {
    "create_session": ("POST", "/sessions", {"id": "{id}"}),
    "list_sessions": ("GET", "/sessions", None),
    "get_session": ("GET", "/sessions/{id}", None),
    "rename_session": ("PATCH", "/sessions/{id}", {"name": "Mine now"}),
    "delete_session": ("DELETE", "/sessions/{id}", None),
    "list_messages": ("GET", "/sessions/{id}/messages", None),
    "delete_message": ("DELETE", "/sessions/{id}/messages/m1", None),
    "cancel_turn": ("POST", "/sessions/{id}/cancel", None),
    "name_session_by_model": ("POST", "/sessions/{id}/name", None),
    "get_summary": ("GET", "/sessions/{id}/summary", None),
    "queue_summary": ("POST", "/sessions/{id}/summary", None),
    "delete_me": ("DELETE", "/users/me", None),
}
# What the owner is answered. There is no queue here, and that is the only thing missing.
OWNER = dict.fromkeys(ROUTES, 200) | {
    "delete_session": 204,
    "delete_message": 409,
    "cancel_turn": 202,
    "queue_summary": 503,
    "delete_me": 204,
}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as issuer:
        yield issuer


@pytest.fixture
def settings(issuer: Issuer, mongod: str, database: Database[Json], model: OfflineModel) -> Settings:
    return Settings(
        auth_mode="jwt",
        jwt_issuer=issuer.url,
        jwt_audience=AUDIENCE,
        mongodb_uri=mongod,
        mongodb_database=database.name,
        openai_base_url=model.base_url,
    )


@pytest.fixture
async def services(settings: Settings, store: ConversationStore) -> AsyncIterator[Services]:
    services = Services(project, settings)
    yield services
    await services.close()


@pytest.fixture
def app(services: Services) -> FastAPI:
    return sessions_app(services)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@pytest.fixture
async def ada(services: Services) -> str:
    """A user with a session `trip` that is being answered and has a summary. Returns the `sub`."""
    subject = f"ada-{new_id()}"
    session = await services.session(f"jwt:{subject}", "trip")
    await services.registry.claim(Claim(session.key, "t1", "m1"))
    await session.begin_turn(TurnStart("t1", 1, "m1", [TextPart(text="My secret plan")]))
    store = await services.store()
    summary = store.models.summary(
        session_id=session.key, content="A secret", token_count=2, start_turn_number=1, end_turn_number=1
    )
    await summary.insert()
    return subject


async def call(client: httpx.AsyncClient, route: str, session_id: str, token: str | None) -> httpx.Response:
    method, path, body = ROUTES[route]
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    sent = json.loads(json.dumps(body).replace("{id}", session_id)) if body else None
    return await client.request(method, path.replace("{id}", session_id), json=sent, headers=headers)


def forged(issuer: Issuer, subject: str, algorithm: str, secret: bytes | None) -> str:
    """A token that is signed with nothing, or with the issuer's public key as if it were a shared secret."""
    parts = ({"alg": algorithm, "kid": "rsa", "typ": "JWT"}, issuer.claims(sub=subject))
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    signed = b".".join(encoded)
    signature = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return b".".join((signed, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()


def bad_tokens(issuer: Issuer, subject: str) -> dict[str, str | None]:
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return {
        "no token": None,
        "expired": issuer.token(sub=subject, exp=1),
        "wrong issuer": issuer.token(sub=subject, iss="https://evil.example"),
        "wrong audience": issuer.token(sub=subject, aud="another-app"),
        "wrong key": issuer.token(sub=subject, key=stranger),
        "none algorithm": forged(issuer, subject, "none", None),
        "HS256 with the public key": forged(issuer, subject, "HS256", issuer.public_pem),
    }


def everything(database: Database[Json]) -> list[Json]:
    return [
        document
        for name in ("users", "sessions", "messages", "summaries")
        for document in database[name].find().sort("_id")
    ]


def test_every_route_is_in_the_matrix() -> None:
    assert {route.name for route in router.routes if isinstance(route, APIRoute)} == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
async def test_without_a_good_token_nothing_is_read_or_changed(
    route: str, client: httpx.AsyncClient, issuer: Issuer, ada: str, database: Database[Json]
) -> None:
    before = everything(database)
    for flaw, token in bad_tokens(issuer, ada).items():
        response = await call(client, route, "trip", token)
        assert (flaw, response.status_code, response.json()["code"]) == (flaw, 401, "unauthenticated")
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert "secret" not in response.text
    assert everything(database) == before


@pytest.mark.parametrize("route", ROUTES)
async def test_another_users_session_is_as_if_it_did_not_exist(
    route: str, client: httpx.AsyncClient, issuer: Issuer, ada: str, database: Database[Json]
) -> None:
    before = everything(database)
    token = issuer.token(sub=f"eve-{new_id()}")
    theirs = await call(client, route, "trip", token)
    nobodys = await call(client, route, "nowhere", token)
    if "{id}" in ROUTES[route][1]:
        assert theirs.status_code == 404
        same = [{**response.json(), "request_id": ""} for response in (theirs, nobodys)]
        assert same[0] == same[1]
    assert "secret" not in theirs.text
    changed = [document for document in everything(database) if document not in before]
    assert all(str(document["_id"]).partition(":")[0] not in str(before) for document in changed)
    assert [document for document in before if document not in everything(database)] == []


async def test_another_user_does_not_stop_the_turn(
    client: httpx.AsyncClient, issuer: Issuer, ada: str, services: Services
) -> None:
    await call(client, "cancel_turn", "trip", issuer.token(sub="eve"))
    await call(client, "delete_session", "trip", issuer.token(sub="eve"))
    running = await services.registry.running((await services.session(f"jwt:{ada}", "trip")).key)
    assert running is not None
    assert not running.stopping


@pytest.mark.parametrize("route", ROUTES)
async def test_the_owner_is_served(route: str, client: httpx.AsyncClient, issuer: Issuer, ada: str) -> None:
    response = await call(client, route, "trip", issuer.token(sub=ada))
    assert response.status_code == OWNER[route], response.text
