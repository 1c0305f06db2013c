"""Turning tracing on and off."""

import asyncio
import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from . import operations

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_SECONDS: Final = 2.0
# As `Settings` reads it. This package imports no other part of omniagent.
_YES: Final = frozenset({"1", "true", "yes", "on"})


class OmniAgentInstrumentor:
    """Sends the package's spans to a tracer provider. All instances share the state of the process.

    It has the interface of OpenTelemetry's instrumentors: the command `opentelemetry-instrument` finds it by its entry
    point and turns it on.
    """

    @property
    def is_instrumented(self) -> bool:
        return operations.active_recorder() is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that have to be installed: none besides this one."""
        return ()

    def instrument(
        self, tracer_provider: "TracerProvider | None" = None, capture_content: bool | None = None, **_options: Any
    ) -> None:
        """Record spans with `tracer_provider`, or with the global one.

        `capture_content` also records text of users, models and tools. None, as `opentelemetry-instrument` passes it,
        means the value of TRACE_CONTENT. Other options, which OpenTelemetry's loader passes to every instrumentor, are
        ignored. The provider generates the ids. The SDK's default generator uses `random`: processes restored from one
        snapshot repeat ids unless they seed it again. The provider of `configure_tracing` has no such state.
        """
        if self.is_instrumented:
            logger.warning("tracing is already on, the second instrument() is ignored")
            return
        # Imported here: importing omniagent.tracing must not import OpenTelemetry.
        from opentelemetry.trace import get_tracer_provider

        from .recording import OpenTelemetryRecorder

        if capture_content is None:
            capture_content = os.environ.get("TRACE_CONTENT", "").lower() in _YES
        provider = tracer_provider or get_tracer_provider()
        operations.activate(OpenTelemetryRecorder(provider, capture_content=capture_content))

    def uninstrument(self, **_options: Any) -> None:
        """Stop recording. A provider made by `configure_tracing` exports its last spans and is shut down."""
        recorder = operations.active_recorder()
        operations.activate(None)
        if recorder is not None:
            recorder.shutdown()

    def flush(self, timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Export all ended spans. Returns False if it fails or takes longer. Async code awaits `flush_traces`."""
        recorder = operations.active_recorder()
        if recorder is None:
            return True
        flushed = recorder.flush()
        try:
            flushed.result(timeout_seconds)
        except Exception:
            flushed.cancel()  # unless it has begun: then it goes on in the background
            return False
        return True


def disconnect_traces() -> None:
    """Export all ended spans and close the connections: they do not survive a snapshot of the process."""
    OmniAgentInstrumentor().flush()
    if recorder := operations.active_recorder():
        recorder.disconnect()


async def flush_traces(timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
    """Export all ended spans without blocking the event loop. Returns False if it fails or takes longer.

    Await it after the end of the stream and before the handler returns: the process is frozen then.
    """
    recorder = operations.active_recorder()
    if recorder is None:
        return True
    try:
        await asyncio.wait_for(asyncio.wrap_future(recorder.flush()), timeout_seconds)
    except Exception:
        return False
    return True
