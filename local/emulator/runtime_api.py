"""The Lambda Runtime API, as one process of a function sees it."""

import asyncio
import base64
import json
import secrets
from collections.abc import Callable

from local.emulator.http import BodyTooLarge, ClientGone, Exchange, Server, below
from local.emulator.invocation import Answer, FunctionFailed, Invocation
from local.emulator.limits import Limits

PREFIX = "/2018-06-01/runtime"
ERROR_TYPE = "lambda-runtime-function-error-type"
ERROR_BODY = "lambda-runtime-function-error-body"
INVOCATION_ID = "lambda-runtime-invocation-id"
RESPONSE_MODE = "lambda-runtime-function-response-mode"


class RuntimeApi:
    """Gives invocations to a process and receives its answers."""

    def __init__(
        self,
        limits: Limits,
        *,
        on_idle: Callable[[], None],
        on_init_error: Callable[[FunctionFailed], None],
        on_answered: Callable[[Invocation], None] | None = None,
    ) -> None:
        """Take the callbacks for a process that asks for work, and for one that reports a failed start.

        A process that asks for more work while it runs invocations ends each by its answer: `on_answered`.
        """
        self._limits = limits
        self._on_idle = on_idle
        self._on_answered = on_answered
        self._on_init_error = on_init_error
        self._work: asyncio.Queue[Invocation] = asyncio.Queue()
        self._running: dict[str, Invocation] = {}
        self._path = f"/{secrets.token_urlsafe()}"
        self._server = Server(self._handle)

    @property
    def address(self) -> str:
        """The value of AWS_LAMBDA_RUNTIME_API. Only the process knows its random path."""
        return f"{self._server.address}{self._path}"

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def close(self) -> None:
        """End."""
        await self._server.close()

    def hand_over(self, invocation: Invocation) -> None:
        """Answer the process's request for work."""
        self._running[invocation.request_id] = invocation
        self._work.put_nowait(invocation)

    async def _handle(self, exchange: Exchange) -> None:
        action = below(self._path + PREFIX, exchange.path) or ""
        match exchange.method, action.strip("/").split("/"):
            case "GET", ["invocation", "next"]:
                await self._next(exchange)
            case "POST", ["invocation", request_id, ("response" | "error") as kind]:
                if (invocation := await self._claimed(exchange, request_id)) is not None:
                    await (self._response if kind == "response" else self._error)(exchange, invocation)
                    self._answered(invocation)
            case "POST", ["init" | "restore", "error"]:
                self._on_init_error(await self._reported(exchange))
                await _accept(exchange)
            case "GET", ["restore", "next"]:
                await exchange.respond(200)
            case _:
                await _refuse(exchange, 404, "NotFound", f"{exchange.method} {exchange.path} is not known")

    async def _next(self, exchange: Exchange) -> None:
        if self._on_answered is None:
            for left in self._running.values():
                if not left.begun:
                    left.fail(FunctionFailed.platform("Runtime.NoResponse", "the runtime gave no response"))
            self._running.clear()
        self._on_idle()
        invocation = await self._work.get()
        headers = [
            # Without it awslambdaric's native client crashes.
            ("content-type", "application/json"),
            ("lambda-runtime-aws-request-id", invocation.request_id),
            (INVOCATION_ID, invocation.invocation_id),
            ("lambda-runtime-deadline-ms", str(invocation.deadline_ms)),
            ("lambda-runtime-invoked-function-arn", invocation.arn),
            ("lambda-runtime-trace-id", invocation.trace_id),
        ]
        if invocation.client_context:
            headers.append(("lambda-runtime-client-context", invocation.client_context))
        await exchange.respond(200, headers, invocation.payload)

    def _answered(self, invocation: Invocation) -> None:
        """End an invocation whose process may run others."""
        if self._on_answered is not None:
            del self._running[invocation.request_id]
            self._on_answered(invocation)

    async def _response(self, exchange: Exchange, invocation: Invocation) -> None:
        content_type = exchange.header("content-type") or "application/octet-stream"
        if exchange.header(RESPONSE_MODE).lower() == "streaming":
            answer = Answer(content_type, streamed=True)
            invocation.answered(answer)
            await self._relay(exchange, answer)
            return
        answer = Answer(content_type, streamed=False)
        try:
            await answer.write(await exchange.body(self._limits.response_bytes))
        except BodyTooLarge:
            failure = _too_large(self._limits.response_bytes)
            invocation.fail(failure)
            await _refuse(exchange, 413, "RequestEntityTooLarge", str(failure))
        else:
            answer.end()
            invocation.answered(answer)
            await _accept(exchange)

    async def _relay(self, exchange: Exchange, answer: Answer) -> None:
        """Pass on a streamed answer chunk by chunk, and its end or its failure. One that is too large fails."""
        left = self._limits.streamed_bytes
        try:
            async for chunk in exchange.chunks():
                if answer.left:
                    await _refuse(exchange, 410, "ReaderLeft", "The reader has left")
                    return
                left -= len(chunk)
                if left < 0:
                    answer.end(_too_large(self._limits.streamed_bytes))
                elif not answer.ended:
                    await answer.write(chunk)
        except ClientGone:
            answer.end(FunctionFailed.platform("Runtime.TruncatedResponse", "the response broke off"))
            raise
        if error_type := exchange.trailers.get(ERROR_TYPE):
            answer.end(FunctionFailed(error_type, base64.b64decode(exchange.trailers.get(ERROR_BODY, ""))))
        answer.end()
        await _accept(exchange)

    async def _error(self, exchange: Exchange, invocation: Invocation) -> None:
        invocation.fail(await self._reported(exchange))
        await _accept(exchange)

    async def _reported(self, exchange: Exchange) -> FunctionFailed:
        """Return the error that the process reports."""
        body = await exchange.body(self._limits.response_bytes)
        return FunctionFailed(exchange.header(ERROR_TYPE) or "Unhandled", body)

    async def _claimed(self, exchange: Exchange, request_id: str) -> Invocation | None:
        """Return the invocation that an answer is for, or refuse the answer."""
        invocation = self._running.get(request_id)
        if invocation is None:
            await _refuse(exchange, 400, "InvalidRequestID", "Invalid request ID")
            return None
        if exchange.header(INVOCATION_ID) not in {"", invocation.invocation_id}:
            await _refuse(exchange, 400, "InvalidInvocationID", "Invalid invocation ID")
            return None
        if invocation.begun:
            await _refuse(exchange, 403, "InvalidStateTransition", "The invocation was answered before")
            return None
        return invocation


def _too_large(limit: int) -> FunctionFailed:
    message = f"Response payload size exceeded maximum allowed payload size ({limit} bytes)."
    return FunctionFailed.platform("Function.ResponseSizeTooLarge", message)


async def _accept(exchange: Exchange) -> None:
    await exchange.respond(202, [("content-type", "application/json")], b'{"status":"OK"}\n')


async def _refuse(exchange: Exchange, status: int, error_type: str, message: str) -> None:
    body = json.dumps({"errorMessage": message, "errorType": error_type}).encode()
    await exchange.respond(status, [("content-type", "application/json")], body)
