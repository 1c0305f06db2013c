"""Passes requests on to another server and its answers back, byte for byte as they come."""

from collections.abc import Callable, Iterable
from contextlib import suppress

import httpx

from local.emulator.http import ClientGone, Exchange, Headers

# What belongs to a connection and not to the message. `host` is the other server's.
NOT_PASSED_ON = frozenset({"connection", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"})


BAD_GATEWAY = 502


class Unreachable(ConnectionError):
    """The other server gave no answer."""


class Failed(RuntimeError):
    """A function failed without an answer of its own. `request_id` is empty where it did not even start."""

    def __init__(self, request_id: str) -> None:
        """Keep the id that its log lines carry."""
        super().__init__(request_id)
        self.request_id = request_id


class Forwarder:
    """Keeps connections to the servers behind."""

    def __init__(self) -> None:
        """Open nothing yet."""
        # Below the client: no headers, redirects, cookies or time limits of its own.
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def forward(
        self, exchange: Exchange, base_url: str, extra: Headers, on_answer: Callable[[httpx.Response], None]
    ) -> None:
        """Send the request to `base_url` and its answer back, with `extra` headers.

        `on_answer` hears of the answer when it begins and when it has ended.
        Raises Unreachable before the answer began, and Failed for the answer that Lambda gives in a function's
        place. Later the connection is broken off, as the other side did. A
        client that leaves ends the connection to the other server, and nothing more.
        """
        has_body = bool(exchange.header("content-length") or exchange.header("transfer-encoding"))
        request = httpx.Request(
            exchange.method,
            base_url,
            headers=_kept(exchange.headers),
            content=exchange.chunks() if has_body else None,
            # The path as it was written, not as a URL parser would write it.
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
            async for chunk in chunks:
                await exchange.send(chunk)
        except httpx.TransportError:
            exchange.abort()
        except ClientGone:
            # The generators behind end here, not whenever the garbage collector finds them.
            await response.aclose()
            with suppress(httpx.TransportError):
                async for _ in chunks:
                    pass
            raise
        else:
            await exchange.finish()


def _kept(headers: Iterable[tuple[str, str]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED_ON]
