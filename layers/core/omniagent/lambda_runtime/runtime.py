"""Response streaming for AWS's own Python runtime client.

It keeps awslambdaric's loop, context, logging, JSON and SnapStart hooks, and adds one thing: a `StreamingResult` is
posted in the Runtime API's streaming mode. The exec wrapper starts `__main__`.
"""

import gc
from collections.abc import Coroutine
from typing import Any

# awslambdaric ships no types: the two classes below are its only subclasses.
from awslambdaric.lambda_runtime_client import LambdaRuntimeClient  # type: ignore[import-untyped]
from awslambdaric.lambda_runtime_marshaller import LambdaMarshaller  # type: ignore[import-untyped]

from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.asgi import StreamingResult
from omniagent.lambda_runtime.streamed_post import StreamedPost


class StreamingMarshaller(LambdaMarshaller):  # type: ignore[misc]  # awslambdaric is untyped
    """Marshals to JSON, except for streamed results."""

    def marshal_response(self, response: Any) -> tuple[Any, str]:
        if isinstance(response, StreamingResult):
            return response, ""  # the post sets its own content type
        json_and_type: tuple[Any, str] = super().marshal_response(response)
        return json_and_type


class StreamingRuntimeClient(LambdaRuntimeClient):  # type: ignore[misc]  # awslambdaric is untyped
    """awslambdaric's client, extended by streamed results."""

    marshaller = StreamingMarshaller()
    lambda_runtime_address: str
    _invocations = 0

    def wait_next_invocation(self) -> Any:
        """Collect garbage first, while no caller waits.

        `gc.freeze` excludes the modules of the cold start and of the first invocation, so a collection takes less than
        a millisecond. There is none at the end of the cold start, because a caller waits then.
        """
        if self._invocations:
            gc.collect()
        if self._invocations <= 1:
            gc.freeze()
            gc.enable()
        self._invocations += 1
        return super().wait_next_invocation()

    def post_invocation_result(
        self,
        invoke_id: str,
        result_data: Any,
        content_type: str = "application/json",
        invocation_id: str | None = None,
    ) -> None:
        if not isinstance(result_data, StreamingResult):
            super().post_invocation_result(invoke_id, result_data, content_type, invocation_id)
            return
        event_loop.run(self.stream(invoke_id, invocation_id, result_data))

    def stream(self, invoke_id: str, invocation_id: str | None, result: StreamingResult) -> Coroutine[Any, Any, None]:
        """Send the beginning of a result, before the event loop runs on. The coroutine posts the rest."""
        return StreamedPost(self.lambda_runtime_address, invoke_id, invocation_id, result).post_rest()

    def call_rapid(self, http_method: str, endpoint: str, *arguments: Any, **named: Any) -> None:
        """Report a failed start or restore. Unlike awslambdaric, support an address with a path, as emulators use."""
        address = self.lambda_runtime_address
        self.lambda_runtime_address, slash, path = address.partition("/")
        try:
            super().call_rapid(http_method, f"{slash}{path}{endpoint}", *arguments, **named)
        finally:
            self.lambda_runtime_address = address
