"""Turning tracing on and off."""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from . import spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger("omniagent.tracing")

FLUSH_TIMEOUT_SECONDS: Final = 2.0


class OmniAgentInstrumentor:
    """Sends the package's spans to a tracer provider. The state is the process's: every instance is the same."""

    @property
    def is_instrumented(self) -> bool:
        return spans.active_recorder() is not None

    def instrument(self, tracer_provider: "TracerProvider | None" = None, capture_content: bool = False) -> None:
        """Record spans with `tracer_provider`, or with the global one.

        `capture_content` also records what users, models and tools wrote.
        """
        if self.is_instrumented:
            logger.warning("Tracing is on already: the second instrument() is ignored")
            return
        # Here, not above: importing omniagent.tracing must not import OpenTelemetry.
        from opentelemetry.trace import get_tracer_provider

        from .recording import OpenTelemetryRecorder

        provider = tracer_provider or get_tracer_provider()
        spans.activate(OpenTelemetryRecorder(provider, capture_content=capture_content))

    def uninstrument(self) -> None:
        """Stop recording. The provider that `configure_tracing` made is shut down, after its last export."""
        recorder = spans.active_recorder()
        spans.activate(None)
        if recorder is not None:
            recorder.shutdown()

    def flush(self, timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Export the spans that have ended. False if that was not done in time. Async code awaits `flush_traces`."""
        recorder = spans.active_recorder()
        return recorder is None or recorder.flush(timeout_seconds)


async def flush_traces(timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
    """Export the spans that have ended, without blocking the loop. Returns at once while tracing is off.

    To be awaited after the stream's end and before the handler returns: the process is frozen then.
    """
    recorder = spans.active_recorder()
    return recorder is None or await asyncio.to_thread(recorder.flush, timeout_seconds)
