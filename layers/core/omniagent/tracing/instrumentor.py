"""Turning tracing on and off."""

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from . import spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT_SECONDS: Final = 2.0


class OmniAgentInstrumentor:
    """Sends the package's spans to a tracer provider. All instances share the state of the process.

    It has the interface of OpenTelemetry's instrumentors: the command `opentelemetry-instrument` finds it by its entry
    point and turns it on.
    """

    @property
    def is_instrumented(self) -> bool:
        return spans.active_recorder() is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what has to be installed besides this package: nothing."""
        return ()

    def instrument(
        self,
        tracer_provider: "TracerProvider | None" = None,
        capture_content: bool = False,
        **_options: Any,
    ) -> None:
        """Record spans with `tracer_provider`, or with the global one.

        `capture_content` also records what users, models and tools wrote. Other options are those of
        OpenTelemetry's instrumentors, which its loader passes to every one, and have no effect here.
        The ids of spans come from the provider: one that uses `random`, as the SDK's does, repeats ids after a
        snapshot is restored unless `random` is seeded again. `configure_tracing` makes a provider that does not.
        """
        if self.is_instrumented:
            logger.warning("tracing is already on, the second instrument() is ignored")
            return
        # Here, not above: importing omniagent.tracing must not import OpenTelemetry.
        from opentelemetry.trace import get_tracer_provider

        from .recording import OpenTelemetryRecorder

        provider = tracer_provider or get_tracer_provider()
        spans.activate(OpenTelemetryRecorder(provider, capture_content=capture_content))

    def uninstrument(self, **_options: Any) -> None:
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
