"""The tool calls of one step. They run concurrently, and none outlives the step."""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from omniagent.ai.context import RunContext
from omniagent.ai.providers.llm_provider import ModelToolCall
from omniagent.ai.tools import Tool, cut_text, render_output
from omniagent.errors import (
    InvalidArguments,
    ToolError,
    ToolFailed,
    ToolNotStarted,
    ToolOutcomeUnknown,
    ToolTimeout,
    TooManyToolCalls,
    UnknownTool,
)
from omniagent.messages import CallRequest, ToolPart, plain_text
from omniagent.protocol import events, plain_json
from omniagent.session.ids import new_id
from omniagent.session.manager import SessionManager
from omniagent.team_code import team_code
from omniagent.tracing import SpanKind, trace_operation
from omniagent.tracing.attributes import TOOL_ID, TOOL_NAME, TOOL_WAITS_FOR
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.journal.recorder import MAX_INPUT_CHARS
from omniagent.turns.setup import call_back

logger = logging.getLogger(__name__)

MAX_CALLS_PER_STEP = 16
"""Maximum number of tool calls that run in one step."""
MAX_REASON_CHARS = 2_000
IN_DOUBT = (
    "{} was running when its process died. It may have taken effect, and is not run again: find out what happened "
    "before you repeat it, or tell the user."
)


class ToolStep:
    """Runs tool calls for one turn. Every failure becomes an error that the model reads."""

    def __init__(self, run: TurnRun, context: RunContext) -> None:
        self._run = run
        self._agent = run.setup.agent
        self._provider = run.setup.provider
        self._recorder = run.recorder
        self._context = context
        self._settings = run.setup.session.settings
        self._expires_at = SessionManager.now() + timedelta(days=self._settings.request_expiry_days)
        """When the requests of this step expire. They share one time, so that none outlives the others."""

    async def run(self, calls: Sequence[ModelToolCall], *, in_doubt: bool = False) -> None:
        """Run the calls of one step. Cancellation ends them all.

        Calls that need approval, or that only the client can run, wait. Calls `in_doubt` may have been running when a
        process died: those with a result are kept, and the others run again only if they are `retry_safe`.
        """
        most = self._settings.max_tool_calls_per_turn
        left = most + len(calls) - sum(isinstance(part, ToolPart) for part in self._recorder.parts)
        self._run.tool_calls += len(calls)
        runs = {}
        for index, call in enumerate(calls):
            refusal = f"At most {most} calls run in one turn. Answer with what you know." if index >= left else ""
            if index >= MAX_CALLS_PER_STEP:
                refusal = f"At most {MAX_CALLS_PER_STEP} calls run in one step."
            if not (in_doubt and self._recorder.call(call.call_id).done):
                runs[call.call_id] = self._call(call, refusal, in_doubt=in_doubt)
        await self._all(runs)

    async def run_approved(self, parts: Sequence[ToolPart], *, in_doubt: bool = False) -> None:
        """Run calls that had to wait, with their stored arguments."""
        calls = [ModelToolCall(part.call_id, part.name, _json(part.input)) for part in parts]
        await self._all({call.call_id: self._call(call, is_approved=True, in_doubt=in_doubt) for call in calls})

    async def _all(self, runs: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {call_id: group.create_task(run) for call_id, run in runs.items()}
        except BaseExceptionGroup as failures:
            failure = failures.exceptions[0]
            raise failure from failure.__cause__
        for call_id, task in tasks.items():
            if task.cancelled():  # not by the step: the tool's own code cancelled its task
                name = self._recorder.call(call_id).name
                failure = ToolFailed(f"{name} cancelled itself. Try something else or tell the user.")
                self._fail(call_id, name, failure)

    async def _call(
        self, call: ModelToolCall, refusal: str = "", *, is_approved: bool = False, in_doubt: bool = False
    ) -> None:
        """Run one tool call and record its result or its error, or let it wait."""
        name, callbacks = call.name, self._agent.callbacks
        context = replace(self._context, call_id=call.call_id)
        attributes = {TOOL_NAME: name, TOOL_ID: call.call_id}
        with trace_operation(f"tool {name}", kind=SpanKind.TOOL, attributes=attributes) as span:
            try:
                arguments = self._arguments(call, is_shown=is_approved)
                span.set_content(input=arguments)
                if refusal:
                    raise TooManyToolCalls(refusal)
                tool, request = self._agent.tools_by_name.get(name), None
                if tool is not None and (tool.is_client or tool.approval) and not is_approved:
                    request = await self._request(tool, call.call_id, arguments, context)
                if request is not None:
                    self._recorder.tool_request(call.call_id, request)
                    span.set(TOOL_WAITS_FOR, request.kind)
                    return
                if in_doubt and tool is not None and not tool.retry_safe:
                    raise ToolOutcomeUnknown(IN_DOUBT.format(name))
                await call_back(callbacks.on_tool_start, context, name, arguments)
                if tool is None:
                    names = ", ".join(each.name for each in self._agent.tools) or "none"
                    raise UnknownTool(f"There is no tool {name!r}. Available: {names}.")
                async with self._in_time(tool):  # rendering may call methods of the team's own objects
                    output = render_output(await tool.invoke(tool.parse(call.arguments), context))
                span.set_content(output=output)
                self._recorder.record(events.ToolOutputAvailable(call.call_id, output))
                await call_back(callbacks.on_tool_end, context, name, output)
            except _UnreadableArguments as exc:
                self._fail(call.call_id, name, exc, raw=call.arguments)
            except ToolError as exc:
                span.error(exc)
                if isinstance(exc, ToolFailed) and exc.__cause__ is not None and not self._provider.tools_may_crash:
                    raise _crash(name, exc.__cause__) from exc.__cause__
                self._fail(call.call_id, name, exc)
                await call_back(callbacks.on_tool_end, context, name, exc)

    async def _request(self, tool: Tool, call_id: str, arguments: Any, context: RunContext) -> CallRequest | None:
        """Return the request that the call needs first. None if it may run.

        The recorded arguments are shown, checked and later run, not the model's raw text.
        """
        checked = tool.parse(_json(arguments))
        reason: str | None = ""
        if not tool.is_client:
            async with self._in_time(tool):
                reason = await tool.approval_reason(checked, context)
            if reason is None:
                return None
        known = self._recorder.call(call_id).request
        return CallRequest(
            id=known.id if known is not None else new_id(),  # already shown before its process died
            kind="output" if tool.is_client else "approval",
            reason=reason[:MAX_REASON_CHARS] if reason else None,
            expires_at=self._expires_at,
        )

    def _arguments(self, call: ModelToolCall, *, is_shown: bool = False) -> Any:
        if len(call.arguments) > MAX_INPUT_CHARS:
            raise _UnreadableArguments(f"The arguments of {call.name} are longer than {MAX_INPUT_CHARS} characters.")
        try:
            arguments = plain_json.parse(call.arguments or "{}")
        except ValueError as exc:
            raise _UnreadableArguments(f"The arguments of {call.name} are not valid JSON: {exc}") from exc
        if not is_shown:
            self._recorder.tool_input(call.call_id, arguments)
        return arguments

    @asynccontextmanager
    async def _in_time(self, tool: Tool) -> AsyncIterator[None]:
        """Run a team's code within the tool's timeout or the time that is left. All it raises becomes a `ToolError`."""
        # A turn that can be handed over cuts the tool off when its time is over.
        limit = self._run.limit
        left = math.inf if limit.may_hand_over else limit.time_left()
        if left <= 0:
            raise ToolNotStarted(f"There is no time left for {tool.name}. Answer with what you know.")
        seconds = min(tool.timeout_seconds, left)
        failed = ToolFailed(f"{tool.name} failed. Try something else or tell the user.")
        try:
            async with asyncio.timeout(seconds):
                with team_code("tool failed", failed, passes=(ToolError,), may_exit=False, tool=tool.name):
                    yield
        except TimeoutError as exc:
            raise ToolTimeout(f"{tool.name} did not answer within {seconds:.3g} seconds.") from exc

    def _fail(self, call_id: str, name: str, exc: ToolError, *, raw: str | None = None) -> None:
        self._run.tool_errors += 1
        logger.info("tool error", extra={"tool": name, "code": exc.code})
        self._recorder.tool_error(call_id, error=plain_text(cut_text(str(exc))), public=exc.public, raw=raw)


def _crash(tool: str, cause: BaseException) -> ToolFailed:
    return ToolFailed(
        f"the tool {tool} raised {type(cause).__name__}: {cause}. If the test expects that, write "
        "ScriptedModel(…, tools_may_crash=True)"
    )


class _UnreadableArguments(InvalidArguments):
    """Not JSON, or too long. The client gets the error instead of the input."""


def _json(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
