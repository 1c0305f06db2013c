"""Several invocations at once on one event loop, on Lambda Managed Instances.

Lambda sets AWS_LAMBDA_MAX_CONCURRENCY there, and its Runtime API takes that many requests for work at once. AWS's own
client forks a process for each of them. Here they share one process, and with it the connections to MongoDB.
"""

import asyncio
import gc
import json
import logging
import sys
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from awslambdaric import bootstrap  # type: ignore[import-untyped]

from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.asgi import StreamingHandler, StreamingResult
from omniagent.lambda_runtime.runtime import StreamingRuntimeClient
from omniagent.network import open_pool
from omniagent.tracing import bind_context

if TYPE_CHECKING:
    import httpcore2

logger = logging.getLogger(__name__)


class SharedProcessClient(StreamingRuntimeClient):
    """awslambdaric's loop starts it; from then on it serves all invocations itself."""

    def __init__(self, address: str, handler: str, most: int) -> None:
        super().__init__(address, False)
        self._handler_name = handler
        self._most = most
        self._url = f"http://{address}/2018-06-01/runtime/invocation"

    def wait_next_invocation(self) -> NoReturn:
        """Serve invocations until the environment is shut down."""
        module, _, name = self._handler_name.rpartition(".")
        handler = getattr(sys.modules[module.replace("/", ".")], name)  # awslambdaric has imported it
        if not isinstance(handler, StreamingHandler):
            raise TypeError(f"{self._handler_name} serves one request at a time: only a StreamingHandler serves more")
        gc.freeze()
        gc.enable()
        event_loop.run(self._serve(handler))
        raise AssertionError("the pollers never end")

    async def _serve(self, handler: StreamingHandler) -> None:
        async with open_pool(None) as pool:
            await asyncio.gather(*(self._poll(pool, handler) for _ in range(self._most)))

    async def _poll(self, pool: "httpcore2.AsyncConnectionPool", handler: StreamingHandler) -> NoReturn:
        while True:
            response = await pool.request("GET", f"{self._url}/next")
            if response.status != 200:
                raise RuntimeError(f"The Runtime API gives no work: {response.status} {response.content[:200]!r}")
            headers = {name.decode().lower(): value.decode() for name, value in response.headers}
            # A task, so that what an invocation binds to its context ends with it.
            await asyncio.create_task(self._invoke(pool, handler, headers, response.content))

    async def _invoke(
        self, pool: "httpcore2.AsyncConnectionPool", handler: StreamingHandler, headers: Mapping[str, str], event: bytes
    ) -> None:
        invoke_id = headers["lambda-runtime-aws-request-id"]
        invocation_id = headers.get("lambda-runtime-invocation-id")
        with bind_context(request_id=invoke_id):
            try:
                result = await StreamingResult.of(handler.app, json.loads(event), _context(headers))
            except Exception as error:
                logger.exception("invocation failed")
                stack = traceback.format_list(traceback.extract_tb(error.__traceback__))
                name = type(error).__name__
                body = json.dumps(bootstrap.make_error(str(error), name, stack, invoke_id)).encode()
                sent: dict[str | bytes, str | bytes] = {"lambda-runtime-function-error-type": name}
                if invocation_id:
                    sent["lambda-runtime-invocation-id"] = invocation_id
                reported = await pool.request("POST", f"{self._url}/{invoke_id}/error", headers=sent, content=body)
                if reported.status // 100 != 2:  # Lambda has given the invocation up; others go on
                    logger.warning("error not reported", extra={"status": reported.status})
            else:
                await self.stream(invoke_id, invocation_id, result)


def _context(headers: Mapping[str, str]) -> Any:
    return bootstrap.create_lambda_context(
        headers.get("lambda-runtime-client-context"),
        headers.get("lambda-runtime-cognito-identity"),
        int(headers["lambda-runtime-deadline-ms"]),
        headers["lambda-runtime-aws-request-id"],
        headers.get("lambda-runtime-invoked-function-arn"),
        headers.get("lambda-runtime-aws-tenant-id"),
    )
