"""Replies to a waiting turn: checked against its stored requests and kept until all are given. Then it goes on."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from omniagent.ai.approvals import NOTHING, Approver, ApproverRule, ToolReply, may_reply, requests_of
from omniagent.ai.client_tools import ClientTool
from omniagent.ai.result import AnswerSource
from omniagent.ai.tools import render_output
from omniagent.errors import (
    Forbidden,
    InvalidRequest,
    NotWaiting,
    ReplyConflict,
    RequestExpired,
    TurnInProgress,
    UnknownRequest,
)
from omniagent.messages import DENIED_ERROR, CallRequest, Part, ToolPart, plain_text
from omniagent.session.ids import new_id, user_id_of
from omniagent.session.live import SessionMessage, SessionState
from omniagent.session.query import Query
from omniagent.turns.engine.following import follow
from omniagent.turns.engine.turn import Turn, turn_span
from omniagent.turns.journal.replay import ReplayedAnswer, frames_after
from omniagent.turns.setup import TimeLimit, TurnSetup
from omniagent.turns.state import Moved
from omniagent.turns.state_events import PartReply, Reply
from omniagent.turns.watch.takeover import close_expired

MAX_COMMENT_CHARS = 2_000
MAX_READS = 20
"""How often the session is read again because it has changed since."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of applying replies to a waiting message."""

    message: SessionMessage
    call_ids: frozenset[str]
    """The calls that were replied to or echoed: the client knows the answer up to the step of the last one."""
    new_requests: frozenset[str]
    """The requests that were replied to for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """Gives replies to a waiting answer: this request goes on with it, another run already does, or it has ended."""

    setup: TurnSetup
    replies: Sequence[ToolReply]
    limit: TimeLimit
    message_id: str
    """Empty: the latest answer."""
    approver: Approver
    rule: ApproverRule | None

    async def open(self) -> AnswerSource:
        """Return the rest of the answer. Raises a `RequestError` if a reply is not acceptable: nothing has changed."""
        for _ in range(MAX_READS):
            name = self.message_id or None
            if name is None and (head := await self.setup.session.head()) is not None:
                name = head.leaf.node if head.turn is None else head.turn.id
            state = await self.setup.session.load(Query(regenerate=True, replaces=name))
            with suppress(Moved):
                if (answer := await self._given(state)) is not None:
                    return answer
        raise TurnInProgress(retry_after=1.0)

    async def _given(self, state: SessionState) -> AnswerSource | None:
        message = state.earlier
        if message is None or message.role != "assistant":
            raise UnknownRequest
        if await close_expired(self.setup, state.head):
            return None
        judgement = await self._judged(message)
        answer, turn, setup = judgement.message, state.head.turn, self.setup
        if turn is None or turn.id != answer.id:
            if message.status == "waiting":
                return None  # it was read before its turn ended
        elif turn.state == "running":  # another run goes on with it already
            if judgement.new_requests:
                return None  # the answer was read before it was given the replies
            followed = await follow(setup, state.head, self.limit)
            if followed is not None:
                followed.begin_with(answer, frames_after(answer, judgement.call_ids, goes_on=True))
            return followed
        elif answer.status == "waiting" and not answer.pending:  # the turn can continue
            await setup.meter.admit()
            question = state.question
            own = question if question is not None and question.node == answer.parent else None
            with turn_span(setup, answer.turn_number) as span:
                head = await setup.apply(state.head, Reply(new_id(), answer))
                return Turn(setup, head, state, self.limit, span, own, base=answer)
        elif judgement.new_requests:
            await setup.apply(state.head, PartReply(answer))
        # While replies are missing, only the results so far: the replies given are stored, and the turn keeps waiting.
        return ReplayedAnswer(setup.session.session_id, answer, frames_after(answer, judgement.call_ids))

    async def _judged(self, message: SessionMessage) -> Judgement:
        """Judge the replies if the approver may give them. To others who may not, the requests look unknown.

        The AI SDK's body repeats all verdicts, also those of other approvers. So the session's user needs permission
        only for the requests that they reply to for the first time.
        """
        if self.approver.user != self.setup.session.user:
            named = {name for reply in self.replies for name in (reply.call_id, reply.request_id) if name}
            allowed = await self._allowed(message, named)
            if not allowed or not all(allowed):
                raise UnknownRequest
            return self._judgement(message)
        judgement = self._judgement(message)
        if not all(await self._allowed(message, judgement.new_requests)):
            raise Forbidden("You may not approve this call. Another approver must.")
        return judgement

    async def _allowed(self, message: SessionMessage, names: Collection[str]) -> list[bool]:
        """Return, for each request named by its own id or its call's, whether the approver may reply to it."""
        session = self.setup.session
        requests = requests_of(
            message, user=session.user, category=session.category, session_id=session.session_id, settled=True
        )
        meant = [request for request in requests if request.call_id in names or request.id in names]
        return [await may_reply(self.rule, self.approver, request) for request in meant]

    def _judgement(self, message: SessionMessage) -> Judgement:
        """Apply the replies to the message. Raises a `RequestError` if any of them is not acceptable.

        Only a verdict, an output or an error is taken from a reply. A repeated reply is accepted and changes nothing,
        and so is a part that the client only echoes.
        """
        parts = list(message.parts)
        call_ids, new_requests = set[str](), set[str]()
        for reply in self.replies:
            found = _find(parts, reply)
            if found is None:
                if reply.is_echo:
                    continue
                raise UnknownRequest if message.status == "waiting" else NotWaiting
            index, part = found
            call_ids.add(part.call_id)
            if part.request is None:
                continue
            if part.is_pending and message.status == "waiting":
                parts[index] = self._answered(part, part.request, reply)
                new_requests.add(part.request.id)
            elif part.request.answered_by is None and not reply.repeats_error:
                raise RequestExpired if message.metadata.get("stopReason") == "expired" else NotWaiting
            elif not self._is_repeated(part, part.request, reply):
                raise ReplyConflict
        return Judgement(replace(message, parts=parts), frozenset(call_ids), frozenset(new_requests))

    def _answered(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> ToolPart:
        _check_kind(part, request, reply)
        now = self.setup.session.now()
        if request.expires_at is not None and request.expires_at <= now:
            raise RequestExpired
        answered: dict[str, Any] = {"answered_by": user_id_of(self.approver.user), "answered_at": now}
        changes: dict[str, Any] = {"done": not reply.approved}
        error = None
        if request.kind == "approval":
            comment = _text(reply.reason) or None
            answered |= {"approved": reply.approved, "comment": comment}
            if not reply.approved:
                error = f"{DENIED_ERROR} Reason: {comment}" if comment else DENIED_ERROR
        elif reply.error is not None:
            error = _text(reply.error) or "The client's tool failed."
        else:
            changes["output"] = self._output(part, reply.output)
        changes |= {"error": error, "public_error": error} if error is not None else {}
        return part.model_copy(update={**changes, "request": request.model_copy(update=answered)})

    def _output(self, part: ToolPart, output: Any) -> Any:
        tool = self.setup.agent.tools_by_name.get(part.name)
        if not isinstance(tool, ClientTool):
            raise InvalidRequest(f"{part.name} is no longer a client tool. Reply with an error.")
        return render_output(tool.parse_reply(part.input, output))

    def _is_repeated(self, part: ToolPart, request: CallRequest, reply: ToolReply) -> bool:
        """Whether the same reply was given before, or the client only echoes the call."""
        if reply.is_echo and reply.approved is None:
            return True
        _check_kind(part, request, reply)
        if request.kind == "approval":
            return request.approved == reply.approved
        if reply.error is not None:
            return part.error == (_text(reply.error) or part.error)
        return part.error is None and self._output(part, reply.output) == part.output


def _find(parts: Sequence[Part], reply: ToolReply) -> tuple[int, ToolPart] | None:
    """Return the reply's call and its place: the last with its id, because some servers reuse an id in every step."""
    if not (reply.call_id or reply.request_id):
        return None
    for index in range(len(parts) - 1, -1, -1):
        part = parts[index]
        if not isinstance(part, ToolPart) or (part.request is None and not reply.is_echo):
            continue
        request_id = part.request.id if part.request is not None else ""
        if reply.call_id in ("", part.call_id) and reply.request_id in ("", request_id):
            return index, part
    return None


def _check_kind(part: ToolPart, request: CallRequest, reply: ToolReply) -> None:
    given = [reply.approved is not None, reply.output is not NOTHING, reply.error is not None]
    if sum(given) != 1:
        raise InvalidRequest("A reply has exactly one of `approved`, `output` and `error`.")
    if request.kind == "approval" and reply.approved is None:
        raise InvalidRequest(f"{part.name} runs on the server: approve or deny it.")
    if request.kind == "output" and reply.approved is not None:
        raise InvalidRequest(f"{part.name} runs in the client: reply with its output, or an error.")


def _text(text: str | None) -> str:
    return plain_text(text or "").strip()[:MAX_COMMENT_CHARS]
