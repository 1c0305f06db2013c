"""The answer as the arguments of a tool, for models whose API does not take the schema of an answer."""

from collections.abc import Iterator
from dataclasses import replace

from omniagent.ai.providers.llm_provider import (
    ModelEvent,
    ModelFinish,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
    OutputFormat,
    ToolSpec,
)


class AnswerTool:
    """One call's tool for the answer. Its arguments are the text of the answer, so nobody else sees a tool."""

    def __init__(self, request: ModelRequest, output: OutputFormat) -> None:
        self.name = output.name
        while any(tool.name == self.name for tool in request.tools):
            self.name += "_"
        self.is_only_tool = not request.tools
        self.request = replace(
            request,
            instructions=f"{request.instructions}\n\nGive your final answer by calling the tool {self.name}.".lstrip(),
            tools=[*request.tools, _spec(self.name, output)],
            output=None,
        )
        self._call_id: str | None = None
        self._has_arguments = False
        self._calls_others = False
        self._texts: list[ModelEvent] = []

    def read(self, event: ModelEvent) -> Iterator[ModelEvent]:
        """Yield the event as one of an answer in text.

        Text is held back: it is the answer only if no call follows. Next to calls of other tools, the model does not
        know their results yet, so its answer is dropped.
        """
        match event:
            case ModelText():
                self._texts.append(event)
            case ModelToolStart() | ModelToolDelta() | ModelToolCall():
                yield from self._read_call(event)
            case ModelFinish():
                yield from self._texts
                is_answer = event.reason == "tool-calls" and not self._calls_others
                yield ModelFinish("stop", event.usage) if is_answer else event
            case _:
                yield event

    def _read_call(self, event: ModelToolStart | ModelToolDelta | ModelToolCall) -> Iterator[ModelEvent]:
        if isinstance(event, ModelToolStart):
            if event.name == self.name:
                self._call_id = self._call_id or event.call_id
                self._texts.clear()
                return
            self._calls_others = True
            yield from self._texts
            self._texts.clear()
        elif isinstance(event, ModelToolCall) and event.name == self.name:
            if event.call_id == self._call_id and not (self._has_arguments or self._calls_others):
                yield ModelText(event.arguments)
            return
        elif isinstance(event, ModelToolDelta) and event.call_id == self._call_id:
            if not self._calls_others:
                self._has_arguments = True
                yield ModelText(event.text)
            return
        yield event


def _spec(name: str, output: OutputFormat) -> ToolSpec:
    description = "Give the final answer. Call this once, at the end, and write no text beside it."
    return ToolSpec(name, description, output.schema, output.strict)
