"""The models of an agent that will soon be shut down, as far as their servers announce it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from omniagent.ai.agent import Agent
from omniagent.ai.providers import ProviderPool, chain_of
from omniagent.settings import Settings

NOTICE_DAYS: Final = 60


@dataclass(frozen=True, slots=True)
class ModelEnd:
    """A model, the date on which it is shut down, and the days until then. They are negative after it."""

    model: str
    shutdown_date: date
    days_left: int


def models_of(agents: Iterable[Agent], settings: Settings) -> list[str]:
    """Return every model that the agents' sessions call: for answers, summaries and names."""
    names = (
        (agent, overrides.model)
        for agent in agents
        for overrides in (agent.overrides, agent.summary, agent.naming or agent.summary)
    )
    chains = (chain_of(name or agent.model or settings.model) for agent, name in names)
    return list(dict.fromkeys(model for chain in chains for model in chain))


async def announced_ends(providers: ProviderPool, models: Iterable[str]) -> list[ModelEnd]:
    """Return the models that end within `NOTICE_DAYS`, or have ended. Raises `ModelError` if a server fails."""
    today = datetime.now(UTC).date()
    dates = {model: await providers.get(model).shutdown_date() for model in models}
    ends = [ModelEnd(model, day, (day - today).days) for model, day in dates.items() if day is not None]
    return [end for end in ends if end.days_left <= NOTICE_DAYS]
