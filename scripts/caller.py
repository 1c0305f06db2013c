"""Calls a deployment like a user: signed with AWS credentials, with a token, or with neither."""

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import boto3
import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

Json = dict[str, Any]
Auth = Literal["iam", "jwt", "none"]
TIMEOUT_SECONDS = 60.0


class CannotCall(Exception):
    """Something that is needed for a call is missing. The message says what to do."""


class Signature(httpx.Auth):
    """Signs each request (SigV4) with the credentials of the environment or the profile."""

    requires_request_body = True

    def __init__(self) -> None:
        self._session = boto3.Session()
        credentials = self._session.get_credentials()
        if credentials is None:
            raise CannotCall("There are no AWS credentials to sign with. Run `aws configure sso` or set AWS_PROFILE.")
        self._credentials = credentials

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        service, region = signed_for(request.url.host)
        region = region or self._session.region_name
        if not region:
            raise CannotCall("No region is set to sign for. Set AWS_REGION.")
        signed = AWSRequest(request.method, str(request.url), data=request.content, headers=_signed_headers(request))
        SigV4Auth(self._credentials, service, region).add_auth(signed)
        request.headers.update(dict(signed.headers.items()))
        yield request


class Bearer(httpx.Auth):
    """Sends a bearer token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer {self._token}"
        yield request


def signed_for(host: str) -> tuple[str, str | None]:
    """Return the service and the region to sign for. A custom domain is API Gateway's."""
    if url := re.search(r"\.lambda-url\.([a-z0-9-]+)\.on\.aws$", host):
        return "lambda", url[1]
    if api := re.search(r"\.execute-api\.([a-z0-9-]+)\.", host):
        return "execute-api", api[1]
    return ("lambda" if is_here(host) else "execute-api"), None


def is_here(host: str) -> bool:
    """Whether the host is this machine."""
    return host in ("127.0.0.1", "localhost", "::1")


def _signed_headers(request: httpx.Request) -> dict[str, str]:
    """Return the headers to sign: only those that proxies do not change."""
    return {name: value for name, value in request.headers.items() if name in ("content-type", "host")}


@dataclass
class Deployment:
    """The two addresses, and how to authenticate. Addresses may end with a slash, as AWS shows them."""

    chat_url: str
    sessions_url: str
    auth: Auth = "none"
    token: str = field(default="", repr=False)
    origin: str = ""
    closed_urls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for url in (self.chat_url, self.sessions_url):
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise CannotCall(f"{url!r} is no address: it must begin with https://.")
            if parts.scheme == "http" and not is_here(parts.hostname):
                raise CannotCall(f"{url} is not https: tokens and messages would be sent in the clear.")
        if self.auth == "jwt" and not self.token:
            raise CannotCall("The deployment wants a token of your issuer. Pass one: TOKEN=….")

    def url(self, path: str) -> str:
        base = self.chat_url if path.startswith("/chat") else self.sessions_url
        return base.rstrip("/") + path

    def client(self, *, credentials: bool = True) -> httpx.Client:
        """Return a client with or without credentials."""
        auth: httpx.Auth | None = None
        if credentials and self.auth == "iam":
            auth = Signature()
        elif credentials and self.auth == "jwt":
            auth = Bearer(self.token)
        # A proxy from the environment cannot reach this machine.
        trust_env = not is_here(urlsplit(self.chat_url).hostname or "")
        return httpx.Client(auth=auth, timeout=TIMEOUT_SECONDS, follow_redirects=False, trust_env=trust_env)


def events_of(lines: Iterator[str]) -> Iterator[Json | None]:
    """Yield the events of a stream as they arrive; None for `[DONE]`."""
    for line in lines:
        if line == "data: [DONE]":
            yield None
        elif line.startswith("data: "):
            event: Json = json.loads(line.removeprefix("data: "))
            yield event
