"""`MongoSessionManager`: a session kept in MongoDB."""

from collections.abc import Sequence
from itertools import groupby

from omniagent.messages import ChatMessage, Part
from omniagent.persistence.documents import Message, Summary
from omniagent.persistence.store import ConversationStore, Owner, TurnEnd, TurnStart
from omniagent.session import window
from omniagent.session.manager import NewSummary, SessionManager, SessionState, StoredMessage, SummaryState, TurnRecord
from omniagent.settings import Settings


class MongoSessionManager(SessionManager):
    """Reads and writes one session through the store that `MongoBackendAdapter.initialize()` returned."""

    def __init__(
        self,
        store: ConversationStore,
        user: str,
        session_id: str | None = None,
        *,
        settings: Settings | None = None,
        category: str | None = None,
    ) -> None:
        super().__init__(user, session_id, settings=settings, category=category)
        self.store = store

    async def load(self, message_id: str | None = None) -> SessionState:
        # One turn more than the model may see: the last one may be answered again, and must not cost a place.
        turns = max(self.settings.context_max_turns, self.settings.summary_after_turns) + 1
        snapshot = await self.store.snapshot(self.key, turns=turns, message_id=message_id)
        if snapshot.session is None:
            return SessionState()
        return SessionState(
            latest_turn_number=snapshot.session.latest_turn_number,
            active_turn_id=snapshot.session.active_turn_id,
            name=snapshot.session.name,
            summary=SummaryState(str(snapshot.summary.id), snapshot.summary.content, snapshot.summary.end_turn_number)
            if snapshot.summary
            else None,
            turns=turns_of(snapshot.messages),
            earlier=_stored(snapshot.earlier),
        )

    async def answer(self, turn_number: int) -> StoredMessage | None:
        return _stored(await self.store.answer(self.key, turn_number))

    async def begin_turn(
        self,
        *,
        turn_id: str,
        turn_number: int,
        message_id: str,
        parts: Sequence[Part],
        running_at_most: int | None = None,
    ) -> None:
        owner = Owner(self.user_id, self.user, self.category)
        start = TurnStart(owner, self.key, turn_id, turn_number, message_id, parts, running_at_most)
        await self.store.begin_turn(start)

    async def restart_turn(self, *, turn_id: str, turn_number: int, running_at_most: int | None = None) -> None:
        await self.store.restart_turn(
            self.key, turn_id=turn_id, turn_number=turn_number, running_at_most=running_at_most
        )

    async def finish_turn(self, record: TurnRecord) -> None:
        await self.store.finish_turn(
            TurnEnd(
                key=self.key,
                turn_id=record.turn_id,
                turn_number=record.turn_number,
                parts=record.parts,
                status=record.status,
                usage=record.usage.to_dict(),
                metadata=record.metadata,
                previous_summary_id=record.previous_summary_id,
                keep_previous=record.keep_previous,
                summary=self._summary(record.summary),
            )
        )

    async def repair_turn(self, turn_id: str, parts: Sequence[Part]) -> bool:
        return await self.store.repair_turn(self.key, turn_id=turn_id, parts=parts)

    async def running_turns(self) -> Sequence[str]:
        return await self.store.running_turns(self.user_id, at_most=self.settings.max_running_turns_per_user)

    def _summary(self, summary: NewSummary | None) -> Summary | None:
        if summary is None:
            return None
        return self.store.models.summary(
            session_id=self.key,
            content=summary.content,
            token_count=summary.token_count,
            start_turn_number=summary.start_turn_number,
            end_turn_number=summary.end_turn_number,
        )


def turns_of(messages: Sequence[Message]) -> list[window.PastTurn]:
    """Group stored messages, in order, into turns."""
    return [
        window.PastTurn(
            number=number,
            messages=tuple(ChatMessage(role=message.role, parts=message.parts) for message in group),
            tokens=sum(_tokens(message) for message in group),
        )
        for number, group in ((number, list(group)) for number, group in groupby(messages, key=lambda m: m.turn_number))
    ]


def _tokens(message: Message) -> int:
    if message.role == "user":
        return window.estimate_parts(message.parts)
    return window.estimate_answer(message.parts, message.usage.get("outputTokens", 0))


def _stored(message: Message | None) -> StoredMessage | None:
    return message and StoredMessage(
        id=message.client_message_id,
        role=message.role,
        turn_number=message.turn_number,
        parts=message.parts,
        status=message.status,
        metadata=message.metadata,
    )
