"""Answers to a waiting turn: checked against its stored requests and kept until all are given. Then it continues."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace

from omniagent.ai.approvals import Approver, ApproverRule, ToolReply, may_reply, requests_of
from omniagent.ai.result import AnswerSource, RunResult
from omniagent.errors import (
    Forbidden,
    NotWaiting,
    StorageConflict,
    TurnInProgress,
    UnknownRequest,
)
from omniagent.messages import StopReason
from omniagent.protocol import sse
from omniagent.session.manager import (
    SessionManager,
    SessionMessage,
    SessionState,
    continuation_id,
    message_id_of,
    user_id_of,
)
from omniagent.turns.deadline import TimeLimit
from omniagent.turns.follow import FollowedAnswer
from omniagent.turns.lease import ANSWER, Claim, RunningTurn
from omniagent.turns.opening import Opening
from omniagent.turns.query import Query
from omniagent.turns.replay import CONTINUED
from omniagent.turns.setup import TurnPlan, TurnSetup
from omniagent.turns.waiting import Judge, Judgement, end_of, frames_after, start_of

PATIENCE_TICKS = 4
"""How long replies wait for another request that holds the session: clients do not retry replies."""


class ReplyOpening(Opening):
    """Opens the rest of a waiting answer: this request continues it, another run already does, or it has ended."""

    def __init__(
        self,
        setup: TurnSetup,
        replies: Sequence[ToolReply],
        limit: TimeLimit,
        *,
        message_id: str = "",
        approver: Approver | None = None,
        rule: ApproverRule | None = None,
    ) -> None:
        super().__init__(setup, Query(message_id=message_id), limit)
        session = setup.session
        self._replies = replies
        self._approver = approver or Approver(session.user, session.category)
        self._rule = rule
        self._waited: SessionMessage | None = None
        self._ticks_left = PATIENCE_TICKS
        self._run: AnswerSource | None = None

    async def _open(self) -> AnswerSource:
        """Find the message first: a settled one needs no claim, and the request need not name it."""
        state = await self._session.load(self._query.known_id)
        message = self._message(state)
        if message is None or message.role != "assistant":
            raise UnknownRequest
        self._waited = message
        if message.status != "waiting":
            return RestOfAnswer(self._session, await self._judged(message))
        if message.turn_number != state.head.latest_turn_number:
            raise NotWaiting
        if await self._is_retry(state):
            from omniagent.turns.takeover import Takeover  # needed only after a crash

            self._run = await Takeover(self._setup, self._limit).open()
        return await super()._open()

    def _message(self, state: SessionState) -> SessionMessage | None:
        """Return the message that is replied to: the named one, or the latest answer."""
        return state.earlier if self._query.known_id else state.answer

    async def _is_retry(self, state: SessionState) -> bool:
        """Whether a run continues this answer. If its process died, only a retry of its replies takes it over."""
        message, turn_id = self._message(state), state.head.active_turn_id
        if message is None or turn_id is None or message_id_of(turn_id) != message.id:
            return False
        return not (await self._judged(message)).is_new

    async def _continue(self) -> AnswerSource:
        """Continue the run whose process died while this request waited for the session."""
        self._may_continue = False
        return await self._open()

    def _claim(self) -> Claim:
        message_id = self._message_id
        return Claim(
            self._session.key, continuation_id(message_id), ANSWER + message_id, aliases=frozenset({message_id})
        )

    async def _join(self, held: RunningTurn) -> AnswerSource | None:
        """Follow the run that already continues this answer, if it was given these replies."""
        if held.claim.message_id != ANSWER + self._message_id:
            return None if await self._is_passing(held) else await super()._join(held)
        followed = await FollowedAnswer.begun(self._setup, held.claim, self._limit)
        if followed is None:
            return None
        try:
            return FollowedRest(followed, self._session, await self._repeated(), self._run)
        except BaseException:
            await followed.ended()
            raise

    async def _is_passing(self, held: RunningTurn) -> bool:
        """Wait a tick if the turn still waits and another request (such as a replay) holds the session. True: retry."""
        head = await self._session.head()
        if not held.alive or not self._ticks_left or head is None or head.waiting_id != self._message_id:
            return False
        self._ticks_left -= 1
        await asyncio.sleep(self._setup.settings.tick_seconds)
        return True

    async def _repeated(self) -> Judgement:
        """Check the replies against those that the running turn was given. Raises `TurnInProgress` if any is new."""
        state = await self._session.load(self._message_id)
        if state.earlier is None:
            raise NotWaiting
        judgement = await self._judged(state.earlier)
        if judgement.is_new:
            raise TurnInProgress(retry_after=1.0)
        return judgement

    async def _plan(self, state: SessionState) -> TurnPlan | AnswerSource:
        message = state.answer
        if message is None or message.id != self._message_id:
            raise NotWaiting
        try:
            judgement = await self._judged(message)
            if message.status != "waiting":
                return RestOfAnswer(self._session, judgement)
            if judgement.is_complete:
                return self._continuation(state, judgement)
            if judgement.is_new:
                await self._change(judgement.message, state)
            return RestOfAnswer(self._session, judgement)
        except StorageConflict as exc:
            raise TurnInProgress(retry_after=1.0) from exc

    def _continuation(self, state: SessionState, judgement: Judgement) -> TurnPlan:
        question, message = state.question, judgement.message
        return TurnPlan(
            message.turn_number,
            question.id if question is not None else "",
            question.text if question is not None else "",
            again=True,
            waited=message,
            seen_turn_id=state.head.latest_turn_id,
        )

    async def _change(self, message: SessionMessage, state: SessionState) -> None:
        changed = replace(message, turn_id=continuation_id(message.id))
        await self._session.change_waiting(changed, seen_turn_id=state.head.latest_turn_id)

    async def _judged(self, message: SessionMessage) -> Judgement:
        """Judge the replies if the approver may give them. To others who may not, the requests look unknown.

        The AI SDK's body repeats all verdicts, also those of other approvers. So the session's user needs permission
        only for the requests that they reply to for the first time.
        """
        judge = Judge(self._setup.agent.tool, user_id_of(self._approver.user), self._session.now())
        if self._approver.user != self._session.user:
            named = {name for reply in self._replies for name in (reply.call_id, reply.request_id) if name}
            allowed = await self._allowed(message, named)
            if not allowed or not all(allowed):
                raise UnknownRequest
            return judge.judge(message, self._replies)
        judgement = judge.judge(message, self._replies)
        if not all(await self._allowed(message, judgement.new_requests)):
            raise Forbidden("You may not approve this call. Another approver must.")
        return judgement

    async def _allowed(self, message: SessionMessage, names: Collection[str]) -> list[bool]:
        """Return, for each request named by its own id or its call's, whether the approver may reply to it."""
        session = self._session
        requests = requests_of(
            message, user=session.user, category=session.category, session_id=session.session_id, settled=True
        )
        meant = [request for request in requests if request.call_id in names or request.id in names]
        return [await may_reply(self._rule, self._approver, request) for request in meant]

    @property
    def _message_id(self) -> str:
        return self._waited.id if self._waited is not None else ""


class RestOfAnswer:
    """The stored rest of an answer that waited, from the results of the step that was replied to.

    While replies are missing, only those results: the replies given are stored, and the turn keeps waiting.
    """

    def __init__(self, session: SessionManager, judgement: Judgement) -> None:
        self.message_id = judgement.message.id
        self._session_id = session.session_id
        self._message = judgement.message
        self._call_ids = judgement.call_ids

    async def frames(self) -> AsyncIterator[bytes]:
        yield start_of(self._message) + frames_after(self._message, self._call_ids) + end_of(self._message)

    async def result(self) -> RunResult:
        return RunResult.of(self._session_id, self._message)

    async def ended(self) -> None:
        """Nothing is running."""

    def stop(self, reason: StopReason) -> None:
        """Nothing is running."""


class FollowedRest:
    """The rest of an answer that another run continues, for a retry of the same replies.

    `run` is set if this request took over that run after its process died.
    """

    def __init__(
        self, followed: FollowedAnswer, session: SessionManager, judgement: Judgement, run: AnswerSource | None = None
    ) -> None:
        self.message_id = judgement.message.id
        self._followed = followed
        self._run = run
        self._session = session
        self._judgement = judgement

    async def frames(self) -> AsyncIterator[bytes]:
        message, call_ids = self._judgement.message, self._judgement.call_ids
        known, is_past = b"", False
        async for frames in self._followed.frames():
            if is_past:
                yield frames
                continue
            known += frames
            logged, mark, rest = known.partition(CONTINUED)
            if mark:
                is_past = True
                yield start_of(message) + frames_after(message, call_ids, logged=logged) + rest
        if not is_past:  # the run died before its first tick: use the stored answer
            stored = await self._session.answer(message.turn_number)
            if stored is not None and stored.id == message.id:
                yield start_of(stored) + frames_after(stored, call_ids) + end_of(stored)
            else:
                yield start_of(message) + sse.DONE

    async def result(self) -> RunResult:
        return await self._followed.result()

    async def ended(self) -> None:
        await self._followed.ended()
        if self._run is not None:
            await self._run.ended()

    def stop(self, reason: StopReason) -> None:
        """Stop the run if it is in this process. A run elsewhere continues."""
        if self._run is not None:
            self._run.stop(reason)
