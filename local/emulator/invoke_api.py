"""Lambda's Invoke API: `POST /2015-03-31/functions/{name}/invocations`."""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from local.emulator.http import BodyTooLarge, Exchange, Server, below
from local.emulator.invocation import FunctionFailed
from local.emulator.pool import Pool, Throttled

log = logging.getLogger(__name__)

ROUTE = re.compile(r"/2015-03-31/functions/([^/]+)/invocations/?")


class InvokeApi:
    """Invokes any function by its name."""

    def __init__(self, pools: Mapping[str, Pool], *, retry_delays: Sequence[float]) -> None:
        """Take the functions by name, and the pauses before retries of a failed asynchronous invocation."""
        self._pools = pools
        self._retry_delays = retry_delays
        self._path = f"/{secrets.token_urlsafe()}"
        self._server = Server(self._handle)
        self._background: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """The value of AWS_ENDPOINT_URL_LAMBDA. Its path is random and serves as a secret."""
        return f"http://{self._server.address}{self._path}"

    async def start(self, port: int) -> None:
        """Listen on `port`, 0 for a free one."""
        await self._server.start(port)

    async def close(self) -> None:
        """Close the server and cancel asynchronous invocations."""
        await self._server.close()
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, exchange: Exchange) -> None:
        path = below(self._path, exchange.path) or ""
        match = ROUTE.fullmatch(path)
        if exchange.method != "POST" or not match:
            await _refuse(exchange, 404, "UnknownOperationException", f"{path} is not an operation.")
            return
        name = _function_name(unquote(match[1]))
        pool = self._pools.get(name)
        if pool is None:
            await _refuse(exchange, 404, "ResourceNotFoundException", f"Function not found: {name}")
            return
        asynchronous = exchange.header("x-amz-invocation-type") == "Event"
        try:
            payload = await exchange.body(pool.limits.event_bytes if asynchronous else pool.limits.request_bytes)
        except BodyTooLarge as error:
            await _refuse(exchange, 413, "RequestTooLargeException", f"Request must not have {error}.")
            return
        if not _is_json(payload):
            await _refuse(exchange, 400, "InvalidRequestContentException", "The event is not JSON.")
        elif asynchronous:
            self._later(pool, payload or b"{}")
            await exchange.respond(202)
        else:
            await _invoke(exchange, pool, payload or b"{}")

    def _later(self, pool: Pool, payload: bytes) -> None:
        task = asyncio.create_task(self._run(pool, payload))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run(self, pool: Pool, payload: bytes) -> None:
        for delay in (0.0, *self._retry_delays):
            await asyncio.sleep(delay)
            try:
                invocation = await pool.invoke(payload)
                await (await invocation.answer()).read()
            except (FunctionFailed, Throttled) as error:
                log.warning("asynchronous invocation of %s failed: %s", pool.function.name, error)
            else:
                return


async def _invoke(exchange: Exchange, pool: Pool, payload: bytes) -> None:
    headers = [("content-type", "application/json"), ("x-amz-executed-version", "$LATEST")]
    try:
        invocation = await pool.invoke(payload, client_context=exchange.header("x-amz-client-context"))
        headers.append(("x-amzn-requestid", invocation.request_id))
        body = await (await invocation.answer()).read()
    except Throttled as error:
        await _refuse(exchange, 429, "TooManyRequestsException", str(error))
    except FunctionFailed as failure:
        await exchange.respond(200, [*headers, ("x-amz-function-error", "Unhandled")], failure.body)
    else:
        await exchange.respond(200, headers, body)


def _function_name(name: str) -> str:
    """Return the name in `name`, `name:qualifier` or an ARN."""
    parts = name.split(":")
    return parts[parts.index("function") + 1] if "function" in parts else parts[0]


def _is_json(payload: bytes) -> bool:
    try:
        json.loads(payload or b"{}")
    except ValueError:
        return False
    return True


async def _refuse(exchange: Exchange, status: int, error_type: str, message: str) -> None:
    headers = [("content-type", "application/json"), ("x-amzn-errortype", error_type)]
    await exchange.respond(status, headers, json.dumps({"Type": "User", "message": message}).encode())
