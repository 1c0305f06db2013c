"""The webhook: what is sent, how it is signed, and what counts as delivered."""

import asyncio
import base64
import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest

from omniagent import Agent, Project, Settings
from omniagent.app.application import Application
from omniagent.app.on_lambda import AwsPlatform
from omniagent.app.webhook import TurnEvent, deliver, signed_headers
from omniagent.errors import ConfigurationError, WebhookFailed
from omniagent.messages import CallRequest, TextPart, ToolPart, Usage
from omniagent.session.live import SessionMessage
from tests.fixtures.http_server import Endpoint

KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
ANSWER = SessionMessage(
    "a1", "assistant", 3, [TextPart(text="private")], usage=Usage(3, 2), metadata={"finishReason": "stop"}
)


def test_the_signature_is_that_of_the_convention() -> None:
    """The example of the Standard Webhooks specification's libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = signed_headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", body, 1614265330)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_two_secrets_give_two_signatures_and_a_plain_one_is_its_own_key() -> None:
    headers = signed_headers(f"{SECRET} plain", "evt_1", b"{}", 1)
    expected = [base64.b64encode(hmac.new(key, b"evt_1.1.{}", hashlib.sha256).digest()) for key in (KEY, b"plain")]
    assert headers["webhook-signature"] == " ".join(f"v1,{digest.decode()}" for digest in expected)


def test_an_event_has_one_id_and_no_text() -> None:
    event = TurnEvent.of("u:s", ANSWER)
    assert event.id == TurnEvent.of("u:s", ANSWER).id
    others = [TurnEvent.of("u:t", ANSWER), TurnEvent.of("u:s", replace(ANSWER, status="failed"))]
    assert event.id not in {other.id for other in others}
    body = event.body(user="ada", session_id="s")
    assert b"private" not in body
    assert b"private" not in event.model_dump_json().encode()
    sent = json.loads(body)
    assert (sent["type"], sent["data"]["user"], sent["data"]["usage"]["outputTokens"]) == ("turn.finished", "ada", 2)


def test_a_turn_that_waits_again_for_something_else_is_another_event() -> None:
    def waiting(request_id: str) -> SessionMessage:
        request = CallRequest(id=request_id, kind="approval")
        part = ToolPart(call_id="c", name="refund", input={"secret": 1}, request=request)
        return SessionMessage("a1", "assistant", 1, [part], "waiting")

    first, second = (TurnEvent.of("u:s", waiting(request_id)) for request_id in ("r1", "r2"))
    assert first.id != second.id
    assert [(request.id, request.kind, request.tool) for request in first.requests] == [("r1", "approval", "refund")]
    assert b"secret" not in first.body(user="ada", session_id="s")


@pytest.mark.parametrize("status", [200, 204])
async def test_an_event_is_delivered_with_its_headers(status: int) -> None:
    body = TurnEvent.of("u:s", ANSWER).body(user="ada", session_id="s")
    with Endpoint((status, b"")) as server:
        await deliver(server.url, "evt_1", body, SECRET)
    assert server.bodies == [body]
    [headers] = server.requests
    sent_at = int(headers["webhook-timestamp"])
    assert headers["webhook-signature"] == signed_headers(SECRET, "evt_1", body, sent_at)["webhook-signature"]
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [307, 410, 500])
async def test_whatever_else_is_answered_is_a_failure_and_redirects_are_not_followed(status: int) -> None:
    with Endpoint((status, b"moved")) as server, pytest.raises(WebhookFailed, match=str(status)):
        await deliver(server.url, "evt_1", b"{}", SECRET)
    assert len(server.requests) == 1


async def test_a_server_that_is_gone_or_never_ends_its_answer_is_given_up() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60), await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(WebhookFailed, match="Timeout"):
            await deliver(url, "evt_1", b"{}", SECRET, timeout_seconds=0.5)
    with pytest.raises(WebhookFailed, match="ConnectError"):
        await deliver("http://127.0.0.1:1", "evt_1", b"{}", SECRET)


@pytest.mark.parametrize("secret", ["", " ", "whsec_", f"{SECRET} whsec_"])
def test_nothing_is_signed_with_an_empty_key(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="secret"):
        signed_headers(secret, "evt_1", b"{}")


def test_a_webhook_that_cannot_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def application(**settings: Any) -> Application:
        known = {"run_queue_url": "https://sqs.eu-west-1.amazonaws.com/1/run"} | settings
        return Application(Project(agent=Agent("helper", "")), AwsPlatform(Settings(**known)))

    application(webhook_url="https://example.com/hook", webhook_secret=SECRET)
    with pytest.raises(ConfigurationError, match="RUN_QUEUE_URL"):
        application(webhook_url="https://example.com/hook", webhook_secret=SECRET, run_queue_url="")
    for url in ("example.com", "ftp://example.com", "https://", "https://["):
        with pytest.raises(ConfigurationError, match="WEBHOOK_URL"):
            application(webhook_url=url, webhook_secret=SECRET)
    with pytest.raises(ConfigurationError, match="WEBHOOK_SECRET"):
        application(webhook_url="https://example.com/hook")
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "run")
    monkeypatch.setenv("OMNIAGENT_LOCAL", "0")
    with pytest.raises(ConfigurationError, match="https"):
        application(webhook_url="http://example.com/hook", webhook_secret=SECRET)
    with pytest.raises(ConfigurationError, match="base64"):
        signed_headers("whsec_!", "evt_1", b"{}")
