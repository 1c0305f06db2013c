"""Forwards requests to another server and streams its answers back unchanged."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import httpx

from local.emulator.http import ClientGone, Exchange, Headers
from local.model_choice import CHOICE_HEADER

# Headers of a connection, not of the message, and a tab's key. `host` is set for the other server.
NOT_PASSED_ON = frozenset(
    {"connection", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade", CHOICE_HEADER}
)


BAD_GATEWAY = 502


class Unreachable(ConnectionError):
    """The other server did not answer."""


class Failed(RuntimeError):
    """A function failed without an answer. `request_id` is empty if the function did not start."""

    def __init__(self, request_id: str) -> None:
        """Keep the request id of its log lines."""
        super().__init__(request_id)
        self.request_id = request_id


class Forwarder:
    """Keeps connections to the other servers."""

    def __init__(self) -> None:
        """Open nothing yet."""
        # Not an httpx client, which would add its own headers, redirects, cookies and timeouts.
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def forward(
        self,
        exchange: Exchange,
        base_url: str,
        extra: Headers,
        on_answer: Callable[[httpx.Response], None],
        added: Headers,
    ) -> None:
        """Send the request to `base_url` with `added` headers, and its answer back with `extra` ones.

        `on_answer` is called when the answer begins and when it has ended. Raises Unreachable if there is no answer,
        and Failed for Lambda's own answer in place of a function's. If the answer breaks off later, the client's
        connection is aborted. If the client leaves, only the connection to the other server is closed.
        """
        has_body = bool(exchange.header("content-length") or exchange.header("transfer-encoding"))
        request = httpx.Request(
            exchange.method,
            base_url,
            headers=[*_kept(exchange.headers), *added],
            content=exchange.chunks() if has_body else None,
            # The path unchanged, not normalised by a URL parser.
            extensions={"target": exchange.target.encode("latin-1")},
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise Unreachable(str(error)) from error
        on_answer(response)
        try:
            if response.status_code == BAD_GATEWAY and "x-request-id" not in response.headers:
                raise Failed(response.headers.get("x-amzn-requestid", ""))
            await self._send_back(exchange, response, extra)
        finally:
            await response.aclose()
            on_answer(response)

    async def _send_back(self, exchange: Exchange, response: httpx.Response, extra: Headers) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw]
        await exchange.start(response.status_code, [*_kept(headers), *extra])
        chunks = response.aiter_raw()
        try:
            async with exchange.watched():
                async for chunk in chunks:
                    await exchange.send(chunk)
        except httpx.TransportError:
            exchange.abort()
        except ClientGone:
            # Ends the generators now, instead of when they are garbage-collected.
            await response.aclose()
            with suppress(httpx.TransportError):
                async for _ in chunks:
                    pass
            raise
        else:
            await exchange.finish()


def _kept(headers: Iterable[tuple[str, str]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED_ON]
