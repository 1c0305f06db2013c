"""Which models an agent calls, and which of them end soon."""

from datetime import UTC, date, datetime, timedelta

import pytest

from omniagent import Agent, Overrides
from omniagent.ai.model_ends import announced_ends, models_of
from omniagent.ai.providers import ProviderPool
from omniagent.settings import Settings
from omniagent.testing import ScriptedModel


class Ending(ScriptedModel):
    def __init__(self, days: int) -> None:
        super().__init__()
        self.days = days

    async def shutdown_date(self) -> date:
        return datetime.now(UTC).date() + timedelta(days=self.days)


@pytest.mark.parametrize(
    ("agent", "settings", "models"),
    [
        (Agent("a", ""), Settings(), [Settings().model]),
        (Agent("a", ""), Settings(model="a, b"), ["a", "b"]),
        (Agent("a", "", model="b"), Settings(model="a"), ["b"]),
        (Agent("a", "", model="b", summary=Overrides(model="c")), Settings(), ["b", "c"]),
        (Agent("a", "", model="b", overrides=Overrides(model="f")), Settings(), ["f", "b"]),
        (Agent("a", "", model=["b", "c"], naming=Overrides(model="d")), Settings(), ["b", "c", "d"]),
    ],
)
def test_the_models_of_answers_summaries_and_names_are_returned(
    agent: Agent, settings: Settings, models: list[str]
) -> None:
    assert models_of([agent], settings) == models


async def test_only_models_that_end_within_60_days_are_returned() -> None:
    days = {"ended": -3, "soon": 60, "later": 61}
    providers = ProviderPool(
        registrations={name: Ending(left) for name, left in days.items()} | {"on": ScriptedModel()}
    )
    ends = await announced_ends(providers, [*days, "on"])
    assert [(end.model, end.days_left) for end in ends] == [("ended", -3), ("soon", 60)]
    assert (ends[1].shutdown_date - ends[0].shutdown_date).days == 63
