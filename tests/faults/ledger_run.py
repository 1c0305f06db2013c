"""What users spend, held against what the model counted: `make ledger` runs both and writes their numbers down.

The budget run starts many turns of one user at once, in several processes. The ledger run lets users talk while the
processes that answer them are killed.
"""

import asyncio
import json
import logging
import random
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT, Template
from omniagent.aws.budget_table import DynamoLedger
from omniagent.session.manager import user_id_of
from omniagent.turns.ledger import JOB, RESERVE_TOKENS, Spending
from scripts.readme import LEDGER
from tests.faults.client import POLL_SECONDS
from tests.faults.house import House, open_house, open_servers
from tests.faults.truth import Conversation, Json, Tally
from tests.fixtures.conversation import dynamodb_api
from tests.fixtures.proxy import Proxy, proxy_to
from tests.fixtures.wire_formats import HttpWire

SETTINGS = {
    "BUDGET_TOKENS_PER_DAY": "10000000",
    "SUMMARY_AFTER_TURNS": "4",
    "NAME_SESSIONS": "true",
}
SUMMARY = "# Previous summary"
FUNCTIONS = ("chat", "sessions", "summary")
PROMPTS = (
    "[echo:A short answer.]",
    "[slow:10][long:40]",
    "[slow:5][tool:blink][then][slow:10][long:30]",
    '[tool:pause {"seconds": 0.2}][tool:blink][then][slow:5][long:20]',
)


@dataclass(frozen=True)
class Burst:
    """What the budget run came to."""

    processes: int
    turns: int
    admitted: int
    budget: int
    reserved: int
    spent: int
    counted: int
    """By the model."""
    units: int
    """Write units of all turns that were admitted."""

    def __str__(self) -> str:
        return (
            f"{self.turns} turns at once over {self.processes} processes: {self.admitted} admitted, "
            f"{self.turns - self.admitted} refused; budget {self.budget}, spent {self.spent}, "
            f"over it by {max(0, self.spent - self.budget)} of {self.reserved} tokens reserved by a turn; "
            f"the model counted {self.counted}; {self.units / self.admitted:.2f} write units a turn"
        )

    def check(self) -> None:
        assert self.spent == self.counted
        assert self.spent <= self.budget + self.reserved
        assert 0 < self.admitted < self.turns
        assert self.units <= 2 * self.admitted


async def burst(aws: Aws, model: OfflineModel, *, processes: int, turns: int, budget: int) -> Burst:
    """Spend one budget from several processes at the same moment."""
    table, user = aws.deploy(Template())["TurnsTable"]["Ref"], f"user-{uuid.uuid4().hex}"
    before = len(model.counted)
    async with proxy_to(aws.endpoint, HttpWire(), keeps_journal=True) as proxy:
        job = {
            "table": table,
            "endpoint": proxy.url,
            "model": model.base_url,
            "user": user,
            "turns": turns // processes,
            "budget": budget,
        }
        results = await _spend(job, processes)
        units = _units(proxy, f"budget#{user_id_of(user)}")
    ledger = DynamoLedger(table, api=dynamodb_api(aws.endpoint))
    page = await ledger.spending(user_id_of(user))
    await ledger.aclose()
    assert (page.reserved, page.spent.estimated) == (0, 0)
    admitted, refused, tokens = (sum(each[name] for each in results) for name in ("admitted", "refused", "tokens"))
    assert tokens == page.spent.tokens
    return Burst(
        processes=processes,
        turns=admitted + refused,
        admitted=admitted,
        budget=budget,
        reserved=RESERVE_TOKENS,
        spent=page.spent.tokens,
        counted=sum(each.tokens for each in model.counted[before:]),
        # A refusal is a write that DynamoDB bills, too, but no turn's.
        units=units - refused,
    )


async def _spend(job: Json, processes: int) -> list[dict[str, int]]:
    started = []
    for number in range(processes):
        command = (sys.executable, "-m", "tests.faults.spender", json.dumps({**job, "name": f"p{number}"}))
        pipe = asyncio.subprocess.PIPE
        started.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT))
    try:
        for process in started:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        told = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
        return [json.loads(output) for output, _ in told]
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _units(proxy: Proxy, user_id: str) -> int:
    """The write units of a user's budget: one per write, as long as a page is smaller than 1 KB.

    One that is sent again, as its answer came too late on a busy machine, is counted once.
    """
    written = (passage.message.body for passage in proxy.journal if passage.message.name == "UpdateItem")
    return len({json.dumps(body, sort_keys=True) for body in written if body["Key"]["session_id"]["S"] == user_id})


@dataclass
class Balance:
    """What the ledger run came to."""

    turns: int = 0
    kills: int = 0
    counted: int = 0
    """By the model, for the calls that a turn has heard of."""
    spent: int = 0
    """In the ledger, without estimates."""
    estimated: int = 0
    cut_calls: int = 0
    beside: int = 0
    """Summaries and names that the model has written."""
    reserved: int = 0
    """By turns: nobody is going to spend it."""
    jobs: int = 0
    """Reservations of summaries and names that were killed, which the user's next one releases 20 minutes later."""
    differences: int = 0

    def __str__(self) -> str:
        return (
            f"{self.turns} turns, {self.beside} summaries and names, {self.kills} kills: "
            f"counted by the model {self.counted}, by the ledger {self.spent}; "
            f"{self.estimated} more are estimated for {self.cut_calls} calls that were cut off; "
            f"{self.reserved} still reserved by turns, {self.jobs} reservations of killed jobs; "
            f"{self.differences} users differ"
        )

    def check(self) -> None:
        assert (self.differences, self.reserved, self.spent) == (0, 0, self.counted)


async def balance(house: House, *, users: int, turns: int, kills: int, seed: int = 20261116) -> Balance:
    """Let users talk while processes are killed, then compare what each has spent with what the model counted."""
    chance, total = random.Random(seed), Balance()
    enough = asyncio.Event()
    talkers = [_Talker(house, random.Random(seed + number)) for number in range(users)]
    talking = [asyncio.create_task(talker.talk(enough, -(-turns // users))) for talker in talkers]
    while total.kills < kills:
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        if running := [*house.emulator.running("chat"), *house.emulator.running("summary")]:
            house.kill_process(chance.choice(running).pid)
            total.kills += 1
    enough.set()
    await asyncio.gather(*talking)
    await asyncio.gather(*(talker.say_goodbye() for talker in talkers))
    while house.emulator.running("chat") or house.emulator.running("summary"):  # noqa: ASYNC110 - until all is settled
        await asyncio.sleep(POLL_SECONDS)
    for talker in talkers:
        await talker.compare(total)
    return total


class _Talker:
    """A user who sends one message after the other, none of them twice."""

    def __init__(self, house: House, chance: random.Random) -> None:
        self._house = house
        self._client = house.client()
        self._chance = chance

    async def talk(self, enough: asyncio.Event, at_least: int) -> None:
        turns = 0
        while turns < at_least or not enough.is_set():
            await self._say(self._chance.choice(PROMPTS))
            turns += 1

    async def say_goodbye(self) -> None:
        """Whatever broke last is repaired."""
        await self._say("[echo:goodbye]")

    async def compare(self, total: Balance) -> None:
        """Hold the user's page against the model's own counts, call by call."""
        conversation, page = self._house.read(self._client), await self._page()
        questions = {message["turn_number"]: message["parts"][0]["text"] for message in conversation.questions}
        reports = defaultdict(list)
        for counted in self._house.servers.model.counted:
            reports[counted.prompt].append(counted.tokens)
        possible, cut = {0}, 0
        for answer in conversation.answers:
            possible = _sums(possible, _costs(answer, reports[questions[answer["turn_number"]]]))
            total.turns += 1
            cut += bool(answer["usage"].get("estimated"))
        for calls, is_stored in self._beside(conversation, questions):
            some = (combinations(calls, size) for size in range(is_stored, len(calls) + 1))
            possible = _sums(possible, {sum(each) for each in chain(*some)})
            total.beside += len(calls)
        exact = page.spent.tokens - page.spent.estimated
        total.differences += exact not in possible
        total.counted += min(possible, key=lambda each: abs(each - exact))
        total.spent += exact
        total.estimated += page.spent.estimated
        total.cut_calls += cut
        total.reserved += sum(held.tokens for held in page.open if not held.id.startswith(JOB))
        total.jobs += sum(held.id.startswith(JOB) for held in page.open)

    def _beside(self, conversation: Conversation, questions: Mapping[int, str]) -> Iterator[tuple[list[int], bool]]:
        """Yield what was counted for each summary and name, several where one was cut off, and whether it is stored.

        What is stored has been counted. Of a call that ended with its process the ledger may not have heard.
        """
        calls = defaultdict(list)
        for counted in self._house.servers.model.counted:
            asked = [number for number, text in questions.items() if text in counted.prompt]
            if asked and counted.prompt.startswith("# "):
                calls[counted.prompt.startswith(SUMMARY), max(asked)].append(counted.tokens)
        stored = {
            each["end_turn_number"] for each in self._house.database.summaries.find({"session_id": conversation.key})
        }
        for (is_summary, number), tokens in calls.items():
            yield tokens, number in stored if is_summary else bool(conversation.document.get("name"))

    async def _say(self, prompt: str) -> None:
        text = f"{prompt} {uuid.uuid4().hex}"
        while (await self._client.say(text)).status in (409, 429):  # noqa: ASYNC110 - until its lease is over
            await asyncio.sleep(POLL_SECONDS)

    async def _page(self) -> Spending:
        ledger = DynamoLedger(self._house.table, api=dynamodb_api(self._house.servers.aws.endpoint))
        try:
            return await ledger.spending(user_id_of(f"local:{self._client.user}"))
        finally:
            await ledger.aclose()


def _sums(some: set[int], others: Iterable[int]) -> set[int]:
    return {one + other for other in others for one in some}


def _costs(answer: Json, reports: list[int]) -> set[int]:
    """Return what a turn may have cost, without estimates.

    A repair knows the calls that were logged. A turn that was killed after it had settled and before its answer was
    stored has counted all of its calls.
    """
    is_estimated = bool(answer["usage"].get("estimated"))
    return {sum(reports[: _steps(answer) - is_estimated]), sum(reports)}


def _steps(answer: Json) -> int:
    metadata = answer["metadata"]
    steps: int = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("stepCount", 0)
    return steps


@contextmanager
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def main() -> None:
    """Run both at full size."""
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        async with open_servers(Path(folder)) as servers:
            shown = await burst(servers.aws, servers.model, processes=8, turns=200, budget=25 * RESERVE_TOKENS)
            print(f"budget: {shown}", flush=True)
            shown.check()
            async with open_house(servers, Tally(), SETTINGS, functions=FUNCTIONS) as house:
                await house.warm_up()
                ledger = await balance(house, users=8, turns=200, kills=60)
                print(f"ledger: {ledger}", flush=True)
                ledger.check()
    LEDGER.write_text(json.dumps({"budget": str(shown), "ledger": str(ledger)}, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
