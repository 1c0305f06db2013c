"""Turning tracing on and off."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import spans

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
        return spans.active_recorder() is not None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that have to be installed: none besides this one."""
        return ()

    def instrument(
        self,
        tracer_provider: "TracerProvider | None" = None,
        capture_content: bool | None = None,
        **_options: Any,
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

        provider = tracer_provider or get_tracer_provider()
        if capture_content is None:
            capture_content = os.environ.get("TRACE_CONTENT", "").lower() in _YES
        spans.activate(OpenTelemetryRecorder(provider, capture_content=capture_content))

    def uninstrument(self, **_options: Any) -> None:
        """Stop recording. A provider made by `configure_tracing` exports its last spans and is shut down."""
        recorder = spans.active_recorder()
        spans.activate(None)
        if recorder is not None:
            recorder.shutdown()

    def flush(self, timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
        """Export all ended spans. Returns False on a timeout. Async code awaits `flush_traces` instead."""
        recorder = spans.active_recorder()
        return recorder is None or recorder.flush(timeout_seconds)


def disconnect_traces() -> None:
    """Export all ended spans and close the connections: they do not survive a snapshot of the process."""
    recorder = spans.active_recorder()
    if recorder is not None:
        recorder.flush(FLUSH_TIMEOUT_SECONDS)
        recorder.disconnect()


async def flush_traces(timeout_seconds: float = FLUSH_TIMEOUT_SECONDS) -> bool:
    """Export all ended spans without blocking the event loop. Returns False on a timeout.

    Await it after the end of the stream and before the handler returns: the process is frozen then.
    """
    recorder = spans.active_recorder()
    return recorder is None or await _run_in_thread(partial(recorder.flush, timeout_seconds))


async def _run_in_thread(flush: Callable[[], bool]) -> bool:
    """Run in a new thread: hanging tools may occupy every thread of the loop's executor."""
    loop = asyncio.get_running_loop()
    flushed: asyncio.Future[bool] = loop.create_future()

    def report(result: bool) -> None:
        if not flushed.done():  # the waiter may have been cancelled
            flushed.set_result(result)

    def run() -> None:
        result = flush()
        with suppress(RuntimeError):  # the loop was closed while the flush ran
            loop.call_soon_threadsafe(report, result)

    threading.Thread(target=run, name="omniagent-flush-wait", daemon=True).start()
    return await flushed
