"""Replies to a waiting turn: checked against its stored requests and kept until all are given. Then it goes on."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from omniagent.ai.approvals import Approver, ApproverRule, ToolReply, may_reply, requests_of
from omniagent.ai.result import AnswerSource
from omniagent.errors import Forbidden, TurnInProgress, UnknownRequest
from omniagent.session.ids import new_id, user_id_of
from omniagent.session.live import SessionHead, SessionMessage, SessionState
from omniagent.session.query import Query
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.engine.beginning import turn_span
from omniagent.turns.engine.following import follow
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.engine.turn import Turn
from omniagent.turns.engine.waiting import Judge, Judgement, frames_after
from omniagent.turns.journal.replay import ReplayedAnswer
from omniagent.turns.setup import TurnSetup
from omniagent.turns.state import Moved
from omniagent.turns.state_events import PartReply, Reply
from omniagent.turns.watch.closing import close_expired

MAX_READS = 20
"""How often the session is read again because it has changed since."""


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
        turn = state.head.turn
        if turn is None or turn.id != message.id:
            # A waiting answer was read before its turn ended.
            return None if message.status == "waiting" else self._rest_of(judgement)
        if turn.state == "running":
            return await self._joined(state.head, judgement)
        if judgement.is_complete:
            await self.setup.meter.admit()
            return await self._gone_on(state, judgement)
        if judgement.is_new:
            await self.setup.apply(state.head, PartReply(judgement.message))
        return self._rest_of(judgement)

    def _rest_of(self, judgement: Judgement) -> AnswerSource:
        """Return the stored rest of the answer, from the results of the step that was replied to.

        While replies are missing, only those results: the replies given are stored, and the turn keeps waiting.
        """
        message = judgement.message
        return ReplayedAnswer(self.setup.session.session_id, message, frames_after(message, judgement.call_ids))

    async def _joined(self, head: SessionHead, judgement: Judgement) -> AnswerSource | None:
        """Follow the run that already goes on with this answer."""
        if judgement.is_new:
            return None  # the answer was read before it was given the replies
        answer = await follow(self.setup, head, self.limit)
        if answer is not None:
            message = judgement.message
            answer.begin_with(message, frames_after(message, judgement.call_ids, goes_on=True))
        return answer

    async def _gone_on(self, state: SessionState, judgement: Judgement) -> Turn:
        """Go on with the turn in this process."""
        question, answer = state.question, judgement.message
        own = question if question is not None and question.node == answer.parent else None
        with turn_span(self.setup, answer.turn_number) as span:
            head = await self.setup.apply(state.head, Reply(new_id(), answer))
            return Turn(TurnRun(self.setup, head, state, self.limit, own, base=answer), span)

    async def _judged(self, message: SessionMessage) -> Judgement:
        """Judge the replies if the approver may give them. To others who may not, the requests look unknown.

        The AI SDK's body repeats all verdicts, also those of other approvers. So the session's user needs permission
        only for the requests that they reply to for the first time.
        """
        judge = Judge(self.setup.agent.tool, user_id_of(self.approver.user), self.setup.session.now())
        if self.approver.user != self.setup.session.user:
            named = {name for reply in self.replies for name in (reply.call_id, reply.request_id) if name}
            allowed = await self._allowed(message, named)
            if not allowed or not all(allowed):
                raise UnknownRequest
            return judge.judge(message, self.replies)
        judgement = judge.judge(message, self.replies)
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
