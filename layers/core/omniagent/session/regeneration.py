"""Summaries made apart from any turn: to close a gap, or anew after messages were deleted."""

from dataclasses import asdict, dataclass, replace

from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.persistence.catalog import Catalog, finished_turns
from omniagent.persistence.documents import Summary
from omniagent.persistence.mongo_session import turns_of
from omniagent.session.manager import NewSummary, SummaryState
from omniagent.session.summarizer import summarize_turns
from omniagent.settings import Settings


@dataclass(frozen=True, slots=True)
class Regenerated:
    """What became of a session's summary. `summarized` says how many summaries were written."""

    summarized: int
    end_turn_number: int


class SummaryRegeneration:
    """Brings the summary of a session up to its last finished turn. Doing it again changes nothing."""

    def __init__(self, catalog: Catalog, provider: LLMProvider, settings: Settings) -> None:
        self._catalog = catalog
        self._provider = provider
        self._settings = settings

    async def update(self, key: str) -> Regenerated:
        """Summarize the turns since the latest summary.

        Each part is stored as soon as it is made: should the time not suffice for a long history, the next try goes on
        from there. Raises `NotFound` when there is no such session.
        """
        session = await self._catalog.get(key)
        previous = _state(await self._catalog.latest_summary(key))
        written, end = 0, previous.end_turn_number if previous else 0
        async for messages in self._catalog.turns_between(key, end + 1, finished_turns(session)):
            made = await summarize_turns(self._provider, previous, turns_of(messages), self._settings)
            if not await self._catalog.add_summary(self._document(key, made)):
                break  # somebody else has summarized these turns, or the session is gone
            written, end = written + 1, made.end_turn_number
            previous = SummaryState("", made.content, end)
        return Regenerated(written, end)

    async def rebuild(self, key: str) -> Regenerated:
        """Summarize every turn anew and put the result in the place of all summaries."""
        session = await self._catalog.get(key)
        made: NewSummary | None = None
        async for messages in self._catalog.turns_between(key, 1, finished_turns(session)):
            previous = SummaryState("", made.content, made.end_turn_number) if made else None
            made = await summarize_turns(self._provider, previous, turns_of(messages), self._settings)
        whole = replace(made, start_turn_number=1) if made else None
        replaced = await self._catalog.replace_summaries(key, self._document(key, whole) if whole else None)
        return Regenerated(int(replaced and whole is not None), whole.end_turn_number if whole else 0)

    def _document(self, key: str, summary: NewSummary) -> Summary:
        return self._catalog.models.summary(session_id=key, **asdict(summary))


def _state(summary: Summary | None) -> SummaryState | None:
    return summary and SummaryState(str(summary.id), summary.content, summary.end_turn_number)
