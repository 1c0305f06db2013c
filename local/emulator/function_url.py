"""The HTTP front of a function: its Function URL, or its address behind API Gateway."""

import json
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from local.callers import Callers
from local.emulator.cors import is_preflight, preflight_headers, response_headers
from local.emulator.http import BodyTooLarge, ClientGone, Exchange, Headers, Server
from local.emulator.identity import Identity, IdentityOf, access_key_of
from local.emulator.invocation import Answer, FunctionFailed, Invocation
from local.emulator.pool import Pool, Throttled
from local.emulator.url_event import api_event, url_event
from local.emulator.url_response import INTEGRATION_TYPE, BadResponse, Head, Prelude, buffered_response
from local.template import FunctionUrl


class Front:
    """Turns requests into invocations, and answers into responses.

    If a client disconnects, the function continues and is not notified, as on Lambda. With `spare` it is, so that a
    process that only reads for the client becomes free.
    """

    # AWS's own responses: status, type and text.
    unsigned = (403, "AccessDeniedException", "Forbidden")
    too_large = (413, "RequestEntityTooLargeException", "Request Too Large")
    throttled = (429, "TooManyRequestsException", "Rate Exceeded.")

    def __init__(self, pool: Pool, config: FunctionUrl, identity_of: IdentityOf) -> None:
        """Serve the function of `pool`."""
        self._pool = pool
        self._config = config
        self._identity_of = identity_of
        # Lambda runs a function for a page of any site; only the browser decides who may read the answer. On this
        # machine, pages of sites that the template does not name are refused.
        origins = frozenset(config.cors.allow_origins if config.cors else ())
        self._server = Server(self._handle, Callers(neighbours=True, origins=origins))

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        return f"http://{self._server.address}"

    async def start(self, port: int) -> None:
        """Listen on `port`, 0 for a free one."""
        await self._server.start(port)

    async def close(self) -> None:
        """End."""
        await self._server.close()

    async def _handle(self, exchange: Exchange) -> None:
        cors = self._config.cors
        if cors and is_preflight(exchange):
            await exchange.respond(200, preflight_headers(cors, exchange))
            return
        identity: Identity | None = None
        if self.wants_signature(exchange):
            access_key = access_key_of(exchange)
            if access_key is None:
                await self._refuse(exchange, *self.unsigned)
                return
            identity = self._identity_of(access_key)
        try:
            invocation = await self._invoke(exchange, identity)
        except BodyTooLarge:
            await self._refuse(exchange, *self.too_large)
        except Throttled:
            await self._refuse(exchange, *self.throttled)
        except FunctionFailed:
            await self._fail(exchange)
        else:
            await self._answer(exchange, invocation)

    def wants_signature(self, exchange: Exchange) -> bool:  # noqa: ARG002 - `ApiFront` uses it
        """Whether a request must be signed."""
        return self._config.auth_type == "AWS_IAM"

    def event(self, exchange: Exchange, body: bytes, identity: Identity | None) -> dict[str, Any]:
        """Return the event that the function gets."""
        return url_event(exchange, body, identity)

    async def _invoke(self, exchange: Exchange, identity: Identity | None) -> Invocation:
        most = self._pool.limits.request_bytes
        body = await exchange.body(most)
        payload = json.dumps(self.event(exchange, body, identity)).encode()
        if len(payload) > most:
            raise BodyTooLarge("the event is larger than its body")
        return await self._pool.invoke(payload)

    async def _answer(self, exchange: Exchange, invocation: Invocation) -> None:
        """Pass the function's answer on."""
        try:
            answer = await invocation.answer()
            if self._config.invoke_mode == "RESPONSE_STREAM":
                await self._stream(exchange, invocation, answer)
            else:
                head, body = buffered_response(await answer.read())
                await exchange.respond(head.status, self._headers(exchange, head, invocation), body)
        except (FunctionFailed, BadResponse):
            await self._fail(exchange, invocation)

    async def _stream(self, exchange: Exchange, invocation: Invocation, answer: Answer) -> None:
        """Pass on a streamed answer as it arrives."""
        chunks = answer.chunks()
        head, body = await _beginning(answer, chunks)
        try:
            await exchange.start(head.status, self._headers(exchange, head, invocation))
            await exchange.send(body)
            async with exchange.watched() if self._pool.spare is not None else nullcontext():
                async for chunk in chunks:
                    await exchange.send(chunk)
            await exchange.finish()
        except FunctionFailed:
            exchange.abort()
        except ClientGone:
            if self._pool.spare is not None:
                answer.leave()
            else:
                await _discard(chunks)
            raise

    def _headers(self, exchange: Exchange, head: Head, invocation: Invocation) -> Headers:
        headers = [*head.headers, ("x-amzn-requestid", invocation.request_id)]
        if self._config.cors:
            kept = [(name, value) for name, value in headers if not name.startswith("access-control-")]
            headers = kept + response_headers(self._config.cors, exchange)
        return headers

    async def _fail(self, exchange: Exchange, invocation: Invocation | None = None) -> None:
        """Answer for a function that failed. AWS gives the caller no details."""
        headers = [("content-type", "application/json")]
        if invocation:
            headers.append(("x-amzn-requestid", invocation.request_id))
        await self._reply(exchange, 502, headers, b"Internal Server Error")

    async def _refuse(self, exchange: Exchange, status: int, error_type: str, message: str) -> None:
        headers = [("content-type", "application/json"), ("x-amzn-errortype", error_type)]
        await self._reply(exchange, status, headers, json.dumps({"Message": message}).encode())

    async def _reply(self, exchange: Exchange, status: int, headers: Headers, body: bytes) -> None:
        cors = self._config.cors
        await exchange.respond(status, headers + (response_headers(cors, exchange) if cors else []), body)


class ApiFront(Front):
    """A function behind an API Gateway REST API that streams. There the function handles CORS itself."""

    unsigned = (403, "MissingAuthenticationTokenException", "Missing Authentication Token")
    too_large = (413, "RequestTooLargeException", "Request Too Long")
    throttled = (429, "TooManyRequestsException", "Too Many Requests")

    def __init__(self, pool: Pool, config: FunctionUrl, identity_of: IdentityOf) -> None:
        """Serve the function of `pool`."""
        super().__init__(pool, replace(config, cors=None), identity_of)

    def wants_signature(self, exchange: Exchange) -> bool:
        """Browsers cannot sign a preflight request: the template leaves OPTIONS open."""
        return super().wants_signature(exchange) and exchange.method != "OPTIONS"

    def event(self, exchange: Exchange, body: bytes, identity: Identity | None) -> dict[str, Any]:
        """Return an event of payload format 1.0."""
        return api_event(exchange, body, identity)


async def _beginning(answer: Answer, chunks: AsyncIterator[bytes]) -> tuple[Head, bytes]:
    """Read an answer up to the first bytes of its body. Returns the head and these bytes."""
    if answer.content_type != INTEGRATION_TYPE:
        return Head(200, [("content-type", answer.content_type)]), b""
    prelude = Prelude()
    async for chunk in chunks:
        if found := prelude.feed(chunk):
            return found
    # AWS reportedly hangs on a prelude without a body, so it must not pass here.
    raise BadResponse("the answer ended before its body began")


async def _discard(chunks: AsyncIterator[bytes]) -> None:
    try:
        async for _ in chunks:
            pass
    except FunctionFailed:
        # The function's log has it, and the client is gone.
        return
