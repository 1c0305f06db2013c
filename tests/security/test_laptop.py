"""`make run` under attack by a web page, and by a program that was not invited: every server that it starts."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from local.model import OfflineModel
from local.processes import ServiceError
from local.stack import StackOptions, local_stack
from tests.fixtures.http_server import HttpServer, Received
from tests.local.commands import command, descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes and ports are found in /proc")

KEY = "sk-proj-the-developers-own-key"
HERE = "127.0.0.1"
# A page whose own name was pointed at this machine after it was loaded: its requests have no foreign origin. Every name
# and origin that looks like one of this machine is in `tests/http/test_auth`; each server has to look.
REBOUND = ["evil.example", "127.0.0.1.nip.io", ""]
FOREIGN = ["https://evil.example", "http://localhost.evil.example", "null"]
PICTURE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
UNINVITED = [
    ("GET", "/2018-06-01/runtime/invocation/next", {}),
    ("POST", "/2018-06-01/runtime/invocation/1/response", {}),
    ("POST", "/2018-06-01/runtime/init/error", {}),
    ("POST", "/2015-03-31/functions/chat/invocations", {}),
    ("POST", "/2015-03-31/functions/sessions/invocations", {}),
    ("GET", "/moto-api/data.json", {}),
    ("POST", "/moto-api/reset", {}),
    ("POST", "/", {"x-amz-target": "secretsmanager.GetSecretValue"}),
    ("POST", "/", {"x-amz-target": "secretsmanager.ListSecrets"}),
    ("POST", "/", {"x-amz-target": "DynamoDB_20120810.ListTables"}),
]
LISTENING = "0A"


class GuardedModel(HttpServer):
    """The offline model behind a key. It tells which wrong key it was given, as careless servers do."""

    content_type = "text/event-stream"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.base_url = f"{self.url}/v1"
        self._model = httpx.Client(base_url=url.removesuffix("/v1"), trust_env=False, timeout=60)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._model.close()

    def answer(self, request: Received) -> tuple[int, bytes]:
        given = request.headers["authorization"].removeprefix("Bearer ")
        if given != KEY:
            return 401, json.dumps({"error": {"message": f"Incorrect API key provided: {given}."}}).encode()
        headers = {"content-type": "application/json", "authorization": "Bearer test"}
        answer = self._model.post(request.path, content=request.body, headers=headers)
        return answer.status_code, answer.content


def listening_ports(pids: set[int]) -> set[int]:
    """Return the TCP ports on which these processes listen."""
    sockets = {link for pid in pids for link in _open_files(pid) if link.startswith("socket:")}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _open_files(pid: int) -> list[str]:
    links = []
    with suppress(FileNotFoundError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(file))  # noqa: PTH115 - what a socket links to is no path
    return links


@dataclass(frozen=True)
class Attacked:
    """A running `make run`, the ports of all its servers, and the model's."""

    pid: int
    url: str
    ports: frozenset[int]
    key: str
    mongodb_uri: str
    http: httpx.Client

    @property
    def children(self) -> dict[int, str]:
        return descendants(self.pid)


@pytest.fixture(scope="module")
def attacked(mongod: str, model: OfflineModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = str(tmp_path_factory.mktemp("data"))
    with GuardedModel(model.base_url) as asked:
        environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": asked.base_url, "MONGODB_URI": mongod, "PORT": "0"}
        with (
            command("run", "--data", folder, **environment) as running,
            httpx.Client(trust_env=False, timeout=60) as http,
        ):
            url = running.read_until("Playground").split()[1].rstrip("/")
            ports = listening_ports({running.pid, *descendants(running.pid)})
            offline = httpx.URL(model.base_url).port or 0
            yield Attacked(running.pid, url, frozenset({*ports, offline}), KEY, mongod, http)


def refused_everywhere(attacked: Attacked, method: str, path: str, headers: dict[str, str]) -> None:
    """Send a request to every server, and find each of them unmoved."""
    for port in sorted(attacked.ports):
        own = {"host": f"{HERE}:{port}", "content-type": "text/plain", **headers}
        answer = attacked.http.request(method, f"http://{HERE}:{port}{path}", headers=own, content=b"{}")
        assert answer.status_code in {403, 404, 405}, (port, path, headers, answer.text)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_there_are_as_many_servers_as_are_attacked(attacked: Attacked) -> None:
    """Front, two function URLs, three runtime APIs (one of a spare), invoke API, secrets, moto and the model."""
    assert len(attacked.ports) == 10


def test_the_key_and_the_address_still_reach_the_functions_through_their_secrets(attacked: Attacked) -> None:
    answer = httpx.post(f"{attacked.url}/chat", json={"query": "What is 21 * 2?"}, trust_env=False, timeout=60)
    assert "42" in answer.text


def test_a_page_whose_name_points_here_is_refused_by_every_server(attacked: Attacked) -> None:
    for host in REBOUND:
        refused_everywhere(attacked, "POST", "/chat", {"host": host})
        refused_everywhere(attacked, "GET", "/", {"host": host})


def test_the_page_of_another_site_is_refused_by_every_server(attacked: Attacked) -> None:
    """A body of plain text is a simple request: a browser sends it without asking first."""
    for origin in FOREIGN:
        refused_everywhere(attacked, "POST", "/chat", {"origin": origin})
        refused_everywhere(attacked, "GET", "/sessions", {"origin": origin})
        preflight = {"origin": origin, "access-control-request-method": "DELETE"}
        refused_everywhere(attacked, "OPTIONS", "/sessions/s-1", preflight)


@pytest.mark.parametrize("fetched", [PICTURE, FRAME], ids=["picture", "frame"])
def test_what_another_site_embeds_is_refused_by_every_server(attacked: Attacked, fetched: dict[str, str]) -> None:
    for path in ("/", "/sessions", "/chat/s-1/stream"):
        refused_everywhere(attacked, "GET", path, fetched)


def test_a_link_from_another_site_to_the_page_may_be_followed(attacked: Attacked) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert httpx.get(attacked.url, headers=followed, trust_env=False, timeout=60).status_code == 200


@pytest.mark.parametrize(("method", "path", "headers"), UNINVITED, ids=str)
def test_a_program_that_was_not_told_the_way_finds_nothing(
    attacked: Attacked, method: str, path: str, headers: dict[str, str]
) -> None:
    for key in ("local", "test"):
        signed = f"AWS4-HMAC-SHA256 Credential={key}/20260101/us-east-1/secretsmanager/aws4_request, Signature=00"
        refused_everywhere(attacked, method, path, {**headers, "authorization": signed})
    refused_everywhere(attacked, method, path, headers)


def test_the_key_and_mongodbs_address_reach_no_other_process(attacked: Attacked) -> None:
    environments = {line: environment_of(pid) for pid, line in attacked.children.items()}
    assert all(any(name in line for line in environments) for name in ("local.moto_server", "bootstrap.py"))
    for line, environment in environments.items():
        written = str(environment) + line
        assert attacked.key not in written, line
        assert attacked.mongodb_uri not in written, line
    inside = next(found for found in environments.values() if "AWS_LAMBDA_FUNCTION_NAME" in found)
    moto = boto3.client(
        "secretsmanager",
        endpoint_url=inside["AWS_ENDPOINT_URL"],
        aws_access_key_id=inside["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key="any",
        region_name="us-east-1",
    )
    assert moto.list_secrets()["SecretList"] == []


def test_whoever_was_told_the_way_gets_a_secret_as_from_aws(attacked: Attacked) -> None:
    inside = next(env for pid in attacked.children if "AWS_LAMBDA_FUNCTION_NAME" in (env := environment_of(pid)))
    client = boto3.client(
        "secretsmanager",
        endpoint_url=inside["AWS_ENDPOINT_URL_SECRETS_MANAGER"],
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
    )
    found = client.get_secret_value(SecretId=inside["OPENAI_SECRET_ARN"])
    assert (found["ARN"], found["SecretString"]) == (inside["OPENAI_SECRET_ARN"], attacked.key)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        client.get_secret_value(SecretId="other")
    with pytest.raises(ClientError, match="InvalidRequestException"):
        client.list_secrets()


def test_knowing_the_way_is_not_enough_for_a_page(attacked: Attacked) -> None:
    inside = next(env for pid in attacked.children if "AWS_LAMBDA_FUNCTION_NAME" in (env := environment_of(pid)))
    signed = {"authorization": f"AWS4-HMAC-SHA256 Credential={inside['AWS_ACCESS_KEY_ID']}/20260101/us-east-1/sqs/"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SECRETS_MANAGER"):
        for page in ({}, {"host": "evil.example"}, {"origin": "http://localhost:3000"}, PICTURE):
            answer = attacked.http.post(inside[name], headers={**signed, **page}, content=b"{}")
            assert (answer.status_code == 403) is bool(page), (name, page)


async def test_the_folder_of_make_run_is_private_however_it_was_made(
    attacked: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / ".local"
    data.mkdir(mode=0o755)
    monkeypatch.setattr("local.stack.DATA", data)
    taken = httpx.URL(attacked.url).port
    with pytest.raises(ServiceError, match="in use"):
        async with local_stack(StackOptions(folder=data / "invoke", port=taken)):
            pass
    assert data.stat().st_mode & 0o777 == 0o700
