"""The keeper: once a tick the journal and the signals, whatever the registry does."""

import asyncio
import ssl
from dataclasses import replace

import pytest

from omniagent import InMemorySessionManager, Settings
from omniagent.errors import RegistryUnavailable, TurnLost
from omniagent.protocol.events import TextDelta
from omniagent.testing import InMemoryStore
from omniagent.turns.engine.run import Keeper
from omniagent.turns.registry import MAX_CHUNK_BYTES, Chunk
from omniagent.turns.setup import SessionSetup
from omniagent.turns.state_events import Begin
from tests.fixtures.package_log import logged
from tests.persistence.turns import turn
from tests.runner.sessions import until
from tests.turns.registries import Unreliable

QUICK = Settings(tick_seconds=0.01, lease_seconds=60.0)
NEVER = replace(QUICK, tick_seconds=3600.0, lease_seconds=7200.0)


class Kept:
    """A journal that a keeper keeps, and what the keeper reported."""

    def __init__(self, settings: Settings = QUICK) -> None:
        self.registry = Unreliable()
        self.session = InMemorySessionManager("ada", "chat", store=InMemoryStore(), settings=settings)
        self.reports: asyncio.Queue[str] = asyncio.Queue()

    async def begin(self) -> "Kept":
        setup = SessionSetup(session=self.session, registry=self.registry)
        head = await setup.apply((await self.session.load()).head, Begin(turn(1)))
        assert head.turn is not None
        self.keeper = Keeper(setup=setup, turn=head.turn, stop=self.reports.put_nowait)
        return self

    def say(self, *texts: str) -> None:
        for text in texts:
            self.keeper.add(TextDelta("0", text))

    async def chunks(self) -> list[list[bytes]]:
        found = await self.registry.read(self.session.key, "answer-1")
        return [chunk.lines.split(b"\n") for chunk in found if chunk.lines]

    async def is_written(self) -> bool:
        try:
            return [line for chunk in await self.chunks() for line in chunk] == self.keeper.lines
        except Exception:  # it is down
            return False


async def test_the_events_of_a_tick_are_one_chunk() -> None:
    kept = await Kept().begin()
    kept.say(*"A hundred tokens are not a hundred writes.")
    await until(kept.is_written)
    kept.say(*"Nor the next ones.")
    await until(kept.is_written)
    await kept.keeper.finish(60)
    assert kept.registry.appends == 2


async def test_a_silent_turn_writes_a_heartbeat_in_each_third_of_a_lease() -> None:
    kept = await Kept(replace(QUICK, lease_seconds=0.12)).begin()

    async def has_beaten() -> bool:
        return kept.registry.appends >= 3

    await until(has_beaten)
    await kept.keeper.finish(60)
    assert await kept.chunks() == []


async def test_a_turn_that_another_run_took_over_writes_nothing_more() -> None:
    kept = await Kept().begin()
    await kept.registry.append(kept.session.key, "answer-1", Chunk(0, "successor", kept.session.now(), b"{}"))
    kept.say("too late")
    assert await kept.reports.get() == "lost"
    with pytest.raises(TurnLost):
        await kept.keeper.checkpoint()
    await kept.keeper.finish(60)
    assert await kept.chunks() == [[b"{}"]]


async def test_a_chunk_fits_into_an_item_and_no_line_is_split() -> None:
    kept = await Kept(NEVER).begin()
    kept.say(*("x" * (MAX_CHUNK_BYTES // 3) for _ in range(5)), "x" * (MAX_CHUNK_BYTES + 1), "small")
    await kept.keeper.finish(60)
    assert [len(chunk) for chunk in await kept.chunks()] == [2, 2, 1, 1, 1]
    assert await kept.is_written()


@pytest.mark.parametrize("error", [None, ssl.SSLError("broken"), KeyError("S")])
async def test_a_registry_that_was_down_gets_everything_once_it_is_back(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await Kept().begin()
    kept.registry.is_down, kept.registry.error = True, error
    kept.say("said while it was down, ")

    async def has_failed() -> bool:
        return bool(logged(caplog))

    await until(has_failed)
    kept.registry.is_down = False
    kept.say("and after.")
    await until(kept.is_written)
    await kept.keeper.finish(60)
    assert logged(caplog) == ["turn registry failing: no stop, no resume, no tools"]


async def test_a_chunk_whose_reply_is_lost_is_repeated_with_the_same_bytes() -> None:
    """A follower may have read it already."""
    kept = await Kept().begin()
    kept.registry.loses_replies = True
    kept.say("first")
    await until(kept.is_written)
    kept.say("second")
    kept.registry.loses_replies = False
    await until(kept.is_written)
    await kept.keeper.finish(60)
    assert [len(chunk) for chunk in await kept.chunks()] == [1, 1]


async def test_tools_do_not_start_while_the_journal_cannot_be_written() -> None:
    kept = await Kept(replace(QUICK, lease_seconds=0.1)).begin()
    kept.say("said")
    kept.registry.is_down = True
    with pytest.raises(RegistryUnavailable):
        await kept.keeper.checkpoint()
    kept.registry.is_down = False
    await kept.keeper.checkpoint()
    assert await kept.is_written()
    await kept.keeper.finish(60)


async def test_a_registry_that_stays_down_does_not_block_the_end(caplog: pytest.LogCaptureFixture) -> None:
    kept = await Kept(NEVER).begin()
    kept.say("said")
    kept.registry.is_down = True
    await kept.keeper.finish(60)
    assert logged(caplog) == ["end of the journal not written"]
