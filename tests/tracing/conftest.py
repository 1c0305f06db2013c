"""A tracer provider that keeps its spans in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from omniagent import Agent, InMemorySessionManager, SessionManager, Tool
from omniagent.ai.operator import TurnOperator
from omniagent.session.in_memory import InMemoryStore
from omniagent.testing import ScriptedModel
from omniagent.tracing import OmniAgentInstrumentor


class Recorded:
    """The spans that have ended, by name."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __getitem__(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    def attributes(self, name: str) -> dict[str, object]:
        return dict(self[name].attributes or {})

    def parent(self, name: str) -> str | None:
        (parent,) = self.parents(name)
        return parent

    def parents(self, name: str) -> list[str | None]:
        """The names of the parents of all spans with this name."""
        spans = self._exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans if span.context is not None}
        return [names[span.parent.span_id] if span.parent else None for span in spans if span.name == name]

    def values(self, name: str, key: str) -> list[object]:
        """One attribute of all spans with this name."""
        return [(span.attributes or {}).get(key) for span in self._exporter.get_finished_spans() if span.name == name]

    @property
    def trace_ids(self) -> set[int]:
        return {span.context.trace_id for span in self._exporter.get_finished_spans() if span.context is not None}

    def forget(self) -> None:
        """Drop what was recorded so far."""
        self._exporter.clear()

    def everything(self) -> str:
        """All that was recorded, as one text to search for what must not be there."""
        return "\n".join(span.to_json() for span in self._exporter.get_finished_spans())


def memory_session(**options: Any) -> InMemorySessionManager:
    """A session in a store of its own."""
    return InMemorySessionManager("ada", "s-1", store=InMemoryStore(), **options)


def guide(model: ScriptedModel, *tools: Tool, session: SessionManager | None = None, **options: Any) -> TurnOperator:
    """The runner of an agent with these tools, by default in a session in memory."""
    agent = Agent("guide", "Be brief.", tools, **options)
    return TurnOperator(agent, session or memory_session(), provider=model)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Spans recorded without content."""
    yield from _instrumented(capture_content=False)


@pytest.fixture
def recorded_with_content() -> Iterator[Recorded]:
    """Spans recorded with content."""
    yield from _instrumented(capture_content=True)


def _instrumented(*, capture_content: bool) -> Iterator[Recorded]:
    spans = Recorded()
    instrumentor = OmniAgentInstrumentor()
    instrumentor.instrument(spans.provider, capture_content=capture_content)
    yield spans
    instrumentor.uninstrument()
