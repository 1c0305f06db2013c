"""Every route of the two functions that serve HTTP. A test holds this list against the apps."""

from dataclasses import dataclass
from typing import Any

import httpx

from tests.fixtures.world import User, World

Json = dict[str, Any]
DOCUMENTS = {"chat": "/chat/openapi.json", "sessions": "/openapi.json"}
"""Where the apps describe themselves."""


@dataclass(frozen=True)
class Route:
    """A path with its method, what a good request to it carries, and what its owner is answered."""

    function: str
    method: str
    path: str
    owner: int
    """What the owner of a session with one answered turn is answered."""
    body: Json | None = None
    also: int | None = None
    """What the owner is answered right after the turn, or for the question of the turn where an answer is meant."""

    def serves(self, status: int) -> bool:
        return status in (self.owner, self.also)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def at(self, session_id: str, message_id: str) -> str:
        """The path to one session and one of its messages."""
        return self.path.format(session_id=session_id, message_id=message_id, request_id=message_id)


ROUTES = (
    Route("chat", "POST", "/chat", 200, {"query": "Hello"}),
    Route("chat", "GET", "/chat/{session_id}/stream", 204, also=200),
    Route("chat", "POST", "/chat/approvals/{request_id}", 404, {"approved": True}),
    Route("sessions", "POST", "/sessions", 201, {}),
    Route("sessions", "GET", "/sessions", 200),
    Route("sessions", "GET", "/sessions/{session_id}", 200),
    Route("sessions", "PATCH", "/sessions/{session_id}", 200, {"name": "Mine"}),
    Route("sessions", "DELETE", "/sessions/{session_id}", 204),
    Route("sessions", "GET", "/sessions/{session_id}/messages", 200),
    Route("sessions", "GET", "/sessions/{session_id}/tree", 200),
    Route("sessions", "PUT", "/sessions/{session_id}/branch", 404, {"nodeId": "unknown"}),
    Route("sessions", "DELETE", "/sessions/{session_id}/messages/{message_id}", 204),
    Route("sessions", "PUT", "/sessions/{session_id}/messages/{message_id}/feedback", 200, {"rating": "up"}, also=422),
    Route("sessions", "DELETE", "/sessions/{session_id}/messages/{message_id}/feedback", 204, also=422),
    Route("sessions", "POST", "/sessions/{session_id}/cancel", 409),
    Route("sessions", "POST", "/sessions/{session_id}/name", 200),
    Route("sessions", "GET", "/sessions/{session_id}/summary", 404),
    Route("sessions", "POST", "/sessions/{session_id}/summary", 503),
    Route("sessions", "GET", "/approvals", 200),
    Route("sessions", "GET", "/usage", 200),
    Route("sessions", "DELETE", "/users/me", 204),
)


def owner_for(route: Route, world: World, user: User) -> User:
    """The user, who has asked one question, or if the route would delete something, another one who has."""
    if route.method != "DELETE":
        return user
    other = world.user()
    other.ask()
    return other


def call(caller: httpx.Client, route: Route, session_id: str) -> httpx.Response:
    """Call a route for a session, or with a body that names it."""
    body = None if route.body is None else {**route.body, "session_id": session_id, "id": session_id}
    return caller.request(route.method, f"http://{route.function}{route.at(session_id, 'question')}", json=body)


def stored(world: World) -> list[Json]:
    """All that is stored of anybody."""
    names = ("users", "sessions", "messages", "summaries")
    return [document for name in names for document in world.database[name].find().sort("_id")]
