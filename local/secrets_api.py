"""Secrets Manager for the functions of one stack: `GetSecretValue` for the API key and the connection string.

These may be real secrets, so only this process and the functions have them. The address has a random path.
"""

import json
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from local.cloudformation import ACCOUNT, REGION
from local.emulator.http import BodyTooLarge, Exchange, Server

ENDPOINT = "AWS_ENDPOINT_URL_SECRETS_MANAGER"
TARGET = "secretsmanager.GetSecretValue"
BODY_LIMIT = 10_000
_ARN = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:"


def secret_arn(name: str) -> str:
    """Return the ARN of a secret."""
    return f"{_ARN}{name}"


class SecretsApi:
    """Serves secrets by name or ARN. Each set of them has an address of its own."""

    def __init__(self) -> None:
        """Start without secrets."""
        self._sets: dict[str, Mapping[str, str]] = {}
        self._server = Server(self._handle)

    def serve(self, values: Mapping[str, str]) -> dict[str, str]:
        """Serve these secrets, by name, and return the environment that sends an AWS SDK to them."""
        path = f"/{secrets.token_urlsafe()}"
        self._sets[path] = values
        return {ENDPOINT: f"http://{self._server.address}{path}"}

    def forget(self, environment: Mapping[str, str]) -> None:
        """Serve the secrets of this environment no more."""
        del self._sets[urlsplit(environment[ENDPOINT]).path]

    async def start(self) -> None:
        """Listen on a free port."""
        await self._server.start()

    async def close(self) -> None:
        """End."""
        await self._server.close()

    async def _handle(self, exchange: Exchange) -> None:
        values = self._sets.get(exchange.path.removesuffix("/"))
        if values is None:
            await exchange.respond(404)
        elif exchange.header("x-amz-target") != TARGET:
            await _refuse(exchange, "InvalidRequestException", f"Here is only {TARGET}.")
        else:
            await _tell(exchange, values)


_JSON = [("content-type", "application/x-amz-json-1.1")]


async def _tell(exchange: Exchange, values: Mapping[str, str]) -> None:
    try:
        name = str(json.loads(await exchange.body(BODY_LIMIT))["SecretId"]).removeprefix(_ARN)
    except (BodyTooLarge, KeyError, TypeError, ValueError):
        await _refuse(exchange, "InvalidParameterException", "SecretId is missing.")
        return
    if name not in values:
        await _refuse(exchange, "ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
        return
    secret = {"ARN": secret_arn(name), "Name": name, "SecretString": values[name]}
    await exchange.respond(200, _JSON, json.dumps(secret).encode())


async def _refuse(exchange: Exchange, error_type: str, message: str) -> None:
    await exchange.respond(400, _JSON, json.dumps({"__type": error_type, "message": message}).encode())
