"""The tool calls of one step: run beside each other, and none outlives the step."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from omniagent.ai.agent import Agent
from omniagent.ai.context import RunContext, call_back
from omniagent.ai.providers.llm_provider import ModelToolCall
from omniagent.ai.tools import Tool, render_output
from omniagent.errors import (
    InvalidArguments,
    ToolError,
    ToolFailed,
    ToolNotStarted,
    ToolTimeout,
    TooManyToolCalls,
    UnknownTool,
)
from omniagent.protocol import plain_json
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_operation
from omniagent.tracing.attributes import TOOL_ID, TOOL_NAME
from omniagent.turns.recorder import MAX_INPUT_CHARS, AnswerRecorder

logger = logging.getLogger(__name__)


class ToolStep:
    """Runs tool calls for one turn. Whatever goes wrong in one becomes an error that the model reads."""

    def __init__(
        self,
        agent: Agent,
        recorder: AnswerRecorder,
        context: RunContext,
        settings: Settings,
        time_left: Callable[[], float],
    ) -> None:
        self._agent = agent
        self._recorder = recorder
        self._context = context
        self._settings = settings
        self._time_left = time_left

    async def run(self, calls: Sequence[ModelToolCall], left_in_turn: int) -> int:
        """Run the calls of one step and return how many failed. Cancelling it ends them all."""
        refusals = [self._refusal(index, left_in_turn) for index in range(len(calls))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run(*each)) for each in zip(calls, refusals, strict=True)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return sum(not self._succeeded(call, task) for call, task in zip(calls, tasks, strict=True))

    def _succeeded(self, call: ModelToolCall, task: "asyncio.Task[bool]") -> bool:
        if not task.cancelled():
            return task.result()
        # The step was not cancelled: the tool's own code cancelled its task.
        failure = ToolFailed(f"{call.name} cancelled itself. Try something else or tell the user.")
        self._note_failure(call.name, failure)
        self._recorder.tool_error(call.call_id, error=str(failure), public=failure.public)
        return False

    def _refusal(self, index: int, left_in_turn: int) -> str:
        settings = self._settings
        if index >= settings.max_tool_calls_per_step:
            return f"At most {settings.max_tool_calls_per_step} calls run in one step."
        if index >= left_in_turn:
            return f"At most {settings.max_tool_calls_per_turn} calls run in one turn. Answer with what you know."
        return ""

    async def _run(self, call: ModelToolCall, refusal: str) -> bool:
        """Run one tool call and record its result. Returns whether it succeeded."""
        name, callbacks = call.name, self._agent.callbacks
        context = self._context.for_call(call.call_id)
        attributes = {TOOL_NAME: name, TOOL_ID: call.call_id}
        with trace_operation(f"tool {name}", kind=SpanKind.TOOL, attributes=attributes) as span:
            try:
                arguments = self._arguments(call)
                span.set_content(input=arguments)
                if refusal:
                    raise TooManyToolCalls(refusal)
                await call_back(callbacks.on_tool_start, context, name, arguments)
                output = await self._output(call, context)
                span.set_content(output=output)
                self._recorder.tool_output(call.call_id, output)
                await call_back(callbacks.on_tool_end, context, name, output)
            except _UnreadableArguments as exc:
                self._note_failure(name, exc)
                self._recorder.tool_input_error(call.call_id, call.arguments, error=str(exc), public=exc.public)
                return False
            except ToolError as exc:
                span.error(exc)
                self._note_failure(name, exc)
                self._recorder.tool_error(call.call_id, error=str(exc), public=exc.public)
                await call_back(callbacks.on_tool_end, context, name, exc)
                return False
        return True

    def _arguments(self, call: ModelToolCall) -> Any:
        if len(call.arguments) > MAX_INPUT_CHARS:
            raise _UnreadableArguments(f"The arguments of {call.name} are longer than {MAX_INPUT_CHARS} characters.")
        try:
            arguments = plain_json.parse(call.arguments or "{}")
        except ValueError as exc:
            raise _UnreadableArguments(f"The arguments of {call.name} are not valid JSON: {exc}") from exc
        self._recorder.tool_input(call.call_id, arguments)
        return arguments

    async def _output(self, call: ModelToolCall, context: RunContext) -> Any:
        tool = self._agent.tool(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._agent.tools) or "none"
            raise UnknownTool(f"There is no tool {call.name!r}. Available: {names}.")
        seconds = self._timeout(tool)
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                output = await tool.invoke(tool.parse(call.arguments), context)
            return render_output(output, self._settings.tool_output_chars)
        except ToolError:
            raise
        except Exception as exc:
            if timeout.expired():
                raise ToolTimeout(f"{call.name} did not answer within {seconds:.3g} seconds.") from exc
            # A team's tool may raise anything. The model learns that it failed, the log learns why.
            logger.exception("tool failed", extra={"tool": call.name})
            raise ToolFailed(f"{call.name} failed. Try something else or tell the user.") from exc

    def _timeout(self, tool: Tool) -> float:
        """A tool gets its own time, or what is left of the turn's."""
        own = self._settings.tool_timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
        left = self._time_left()
        if left <= 0:
            raise ToolNotStarted(f"There is no time left for {tool.name}. Answer with what you know.")
        return min(own, left)

    def _note_failure(self, name: str, exc: ToolError) -> None:
        logger.info("tool error", extra={"tool": name, "code": exc.code})


class _UnreadableArguments(InvalidArguments):
    """Not JSON, or far too long: the client is told so before any input is available."""
