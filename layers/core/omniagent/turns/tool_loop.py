"""The tool loop: model, tools, model, until there is an answer or the steps are used up."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from omniagent.ai.agent import Agent
from omniagent.ai.callbacks import call_back
from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import (
    LLMProvider,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
    Overrides,
)
from omniagent.ai.providers.model_calls import call_model
from omniagent.ai.tools import Tool, render_output
from omniagent.errors import (
    EmptyAnswer,
    InvalidArguments,
    ModelStreamBroken,
    StepLimitReached,
    ToolError,
    ToolFailed,
    ToolNotStarted,
    ToolTimeout,
    UnknownTool,
)
from omniagent.messages import ChatMessage, FinishReason, Usage
from omniagent.protocol import plain_json
from omniagent.settings import Settings
from omniagent.tracing import SpanKind, trace_operation
from omniagent.turns.recorder import Recorder

logger = logging.getLogger("omniagent.loop")


@dataclass(slots=True)
class Progress:
    """What the loop has done so far. It stays readable when the loop is stopped or fails."""

    usage: Usage = Usage()
    steps: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    first_token_at: float | None = None


class ToolLoop:
    """Answers one question. The recorder holds the answer, also when the loop does not reach its end."""

    def __init__(
        self,
        agent: Agent,
        provider: LLMProvider,
        recorder: Recorder,
        context: RunContext[Any],
        settings: Settings,
        *,
        time_left: Callable[[], float],
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._recorder = recorder
        self.context = context
        self._settings = settings
        self._time_left = time_left
        self.progress = Progress()

    async def run(self, instructions: str, history: Sequence[ChatMessage]) -> FinishReason:
        """Run the loop and return why the model stopped. Raises a `ModelError` when there is no answer."""
        tools = self._agent.tool_specs()
        overrides = self._overrides()
        for _ in range(self._settings.max_steps):
            answer = self._recorder.parts
            messages = [*history, ChatMessage(role="assistant", parts=answer)] if answer else history
            reason, calls = await self._step(ModelRequest(instructions, messages, tools, overrides))
            if calls:
                await asyncio.gather(*(self._run_tool(call) for call in calls))
            self._recorder.finish_step()
            if not calls:
                return reason
        raise StepLimitReached(f"no answer after {self._settings.max_steps} steps")

    async def _step(self, request: ModelRequest) -> tuple[FinishReason, list[ModelToolCall]]:
        self.progress.steps += 1
        self._recorder.start_step()
        calls: list[ModelToolCall] = []
        answered = False
        model = self._provider.model_for(request.overrides)
        async with aclosing(call_model(self._provider, request, purpose="answer")) as model_events:
            async for event in model_events:
                match event:
                    case ModelText():
                        answered = True
                        self._note_first_token()
                        self._recorder.text(event.text)
                    case ModelToolDelta():
                        self._recorder.tool_delta(event.call_id, event.text)
                    case ModelReasoning():
                        self._note_first_token()
                        self._recorder.reasoning(event.text)
                    case ModelReasoningDone():
                        self._recorder.end_block(event.provider_data)
                    case ModelToolStart():
                        self._recorder.tool_start(event.call_id, event.name)
                    case ModelToolCall():
                        self._recorder.ensure_call(event.call_id, event.name)
                        calls.append(event)
                    case ModelFinish():
                        self.progress.usage += event.usage
                        if not (answered or calls):
                            raise EmptyAnswer(f"{model} answered nothing ({event.reason})")
                        return event.reason, calls
        raise ModelStreamBroken(f"{model}: the stream has no end")

    async def _run_tool(self, call: ModelToolCall) -> None:
        """Run one tool call. Whatever goes wrong becomes an error that the model reads."""
        self.progress.tool_calls += 1
        name = call.name
        with trace_operation(f"tool {name}", kind=SpanKind.TOOL, attributes={"tool.name": name}) as span:
            try:
                arguments = self._arguments(call)
                span.set_content(input=arguments)
                await call_back(self._agent.callbacks.on_tool_start, self.context, name, arguments)
                output = await self._call(call)
                span.set_content(output=output)
                self._recorder.tool_output(call.call_id, output)
                await call_back(self._agent.callbacks.on_tool_end, self.context, name, output)
            except _BrokenArguments as exc:
                self._failed(name, exc)
                self._recorder.tool_input_error(call.call_id, call.arguments, error=str(exc), public=exc.public)
            except ToolError as exc:
                span.error(exc)
                self._failed(name, exc)
                self._recorder.tool_error(call.call_id, error=str(exc), public=exc.public)
                await call_back(self._agent.callbacks.on_tool_end, self.context, name, exc)

    def _arguments(self, call: ModelToolCall) -> Any:
        try:
            arguments = plain_json.parse(call.arguments or "{}")
        except ValueError as exc:
            raise _BrokenArguments(f"The arguments of {call.name} are not valid JSON: {exc}") from exc
        self._recorder.tool_input(call.call_id, arguments)
        return arguments

    async def _call(self, call: ModelToolCall) -> Any:
        tool = self._agent.tool(call.name)
        if tool is None:
            names = ", ".join(tool.name for tool in self._agent.tools) or "none"
            raise UnknownTool(f"There is no tool {call.name!r}. Available: {names}.")
        arguments = tool.parse(call.arguments)
        timeout = self._timeout(tool)
        context = self.context.for_call(call.call_id)
        try:
            async with asyncio.timeout(timeout):
                return render_output(await tool.invoke(arguments, context), self._settings.tool_output_chars)
        except ToolError:
            raise
        except TimeoutError as exc:
            raise ToolTimeout(f"{call.name} did not answer within {timeout:g} seconds.") from exc
        except Exception as exc:
            # A team's tool may raise anything. The model learns that it failed, the log learns why.
            logger.exception("tool failed", extra={"tool": call.name})
            raise ToolFailed(f"{call.name} failed. Try something else or tell the user.") from exc

    def _timeout(self, tool: Tool) -> float:
        timeout = self._settings.tool_timeout_seconds if tool.timeout_seconds is None else tool.timeout_seconds
        if timeout > self._time_left():
            raise ToolNotStarted(f"There is not enough time left for {tool.name}. Answer with what you know.")
        return timeout

    def _failed(self, name: str, exc: ToolError) -> None:
        self.progress.tool_errors += 1
        logger.info("tool error", extra={"tool": name, "code": exc.code})

    def _note_first_token(self) -> None:
        if self.progress.first_token_at is None:
            self.progress.first_token_at = time.monotonic()

    def _overrides(self) -> Overrides:
        given = self._agent.overrides
        limit = given.max_output_tokens or self._settings.max_output_tokens or None
        return Overrides(model=given.model, temperature=given.temperature, max_output_tokens=limit, extra=given.extra)


class _BrokenArguments(InvalidArguments):
    """Not JSON at all: the client is told so before any input is available."""
