"""`make smoke`, against the emulator: what works passes, and what does not is named."""

import asyncio

import httpx
import pytest

from local.background import BackgroundStack
from scripts import smoke
from scripts.caller import Auth, Deployment, signed_for
from tests.fixtures.http_server import HttpServer, Received
from tests.fixtures.product import Product


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody whom the emulator takes at their word."""
    for name in ("STAGE", "URL", "CHAT_URL", "SESSIONS_URL", "TOKEN", "ORIGIN", "AUTH", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "operator")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.mark.parametrize("front", ["function-url", "api-gateway"])
async def test_a_deployment_that_works_passes_with_signed_requests(
    front: str, product: Product, capsys: pytest.CaptureFixture[str]
) -> None:
    url_of = product.emulator.url_of if front == "function-url" else product.emulator.api_url_of
    urls = ["--chat-url", url_of("chat"), "--sessions-url", url_of("sessions"), "--auth", "iam"]
    code = await asyncio.to_thread(smoke.main, urls)
    told = capsys.readouterr().out
    assert code == 0, told
    assert (told.count("  ok  "), told.count("  skipped ")) == (8, 2)
    assert told.endswith("The deployment works.\n")


def test_one_address_and_its_cors_pass_without_credentials(
    stack: BackgroundStack, capsys: pytest.CaptureFixture[str]
) -> None:
    code = smoke.main(["--url", f"{stack.url}/", "--origin", "http://localhost:3000"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "http://localhost:3000 may call, https://stranger.example may not" in told


class Down(HttpServer):
    """A deployment whose MongoDB is out of reach."""

    def answer(self, request: Received) -> tuple[int, bytes]:
        return 503, b'{"code": "storage_unavailable"}'


class Buffering(HttpServer):
    """Waits for whole answers of what is behind it, and passes no headers on."""

    def __init__(self, behind: str) -> None:
        super().__init__()
        self._behind = behind

    def answer(self, request: Received) -> tuple[int, bytes]:
        headers = {"content-type": request.headers.get("content-type", "")}
        response = httpx.post(
            self._behind + request.path, content=request.body, headers=headers, trust_env=False, timeout=60
        )
        return response.status_code, response.content


def test_a_deployment_that_is_down_fails_at_the_first_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with Down() as down:
        assert smoke.main(["--url", down.url]) == 1
    told = capsys.readouterr().out
    assert "FAILED  streams" in told
    assert "storage_unavailable" in told
    assert told.endswith("Failed: streams.\n")


class Gate(HttpServer):
    """Refuses everybody with 403, or is open by mistake."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self._status = status
        self.authorizations: list[str | None] = []

    def answer(self, request: Received) -> tuple[int, bytes]:
        self.authorizations.append(request.headers.get("authorization"))
        return self._status, b"{}"


@pytest.mark.parametrize(("auth", "authorization"), [("jwt", "Bearer a-token"), ("iam", None)])
def test_an_address_that_should_be_closed_is_called(auth: Auth, authorization: str | None) -> None:
    def closed_addresses(*urls: str) -> str:
        deployment = Deployment(urls[0], urls[0], auth, "a-token", closed_urls=urls)
        with deployment.client() as http, deployment.client(credentials=False) as stranger:
            return smoke.Smoke(deployment, http, stranger).closed_addresses()

    with Gate(403) as closed, Gate(200) as opened:
        assert closed_addresses(closed.url).startswith("403 from 1 addresses")
        with pytest.raises(smoke.Failed, match=f"{opened.url} should be closed: 200"):
            closed_addresses(closed.url, opened.url)
        assert {*closed.authorizations, *opened.authorizations} == {authorization}


def test_a_proxy_that_changes_the_stream_is_found(stack: BackgroundStack, capsys: pytest.CaptureFixture[str]) -> None:
    with Buffering(stack.url) as proxy:
        assert smoke.main(["--url", proxy.url]) == 1
    assert "a proxy on the way removes headers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stage", "nowhere"], "samconfig.toml has no stage nowhere. There are: dev, prod."),
        (["--chat-url", "https://a.example"], "Give CHAT_URL and SESSIONS_URL, or URL for both."),
        (["--url", "chat.example.com"], "'chat.example.com' is no address: it must begin with https://."),
        (["--url", "http://chat.example.com"], "http://chat.example.com is not https"),
        (["--url", "https://chat.example.com", "--auth", "jwt"], "Pass one: TOKEN=…."),
    ],
)
def test_what_is_missing_to_call_is_said(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("abc.lambda-url.eu-west-1.on.aws", ("lambda", "eu-west-1")),
        ("abc.execute-api.eu-west-1.amazonaws.com", ("execute-api", "eu-west-1")),
        ("chat.example.com", ("execute-api", None)),
        ("127.0.0.1", ("lambda", None)),
    ],
)
def test_a_request_is_signed_for_the_service_that_its_host_belongs_to(
    host: str, expected: tuple[str, str | None]
) -> None:
    assert signed_for(host) == expected
