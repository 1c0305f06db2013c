"""The soak: people talk for as many turns as wanted while everything breaks. `make soak` runs a long one.

Afterwards what the clients saw, what MongoDB and DynamoDB hold, and how often the model and the tools were called have
to agree. A short one is among the tests.
"""

import argparse
import asyncio
import json
import logging
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.readme import SOAK
from tests.faults.client import a_moment
from tests.faults.examination import Bills, examine_session, largest_skew
from tests.faults.house import House, open_house, open_servers
from tests.faults.load import STUCK_SECONDS, Crowd, User
from tests.faults.truth import Findings, steering_ids
from tests.faults.weather import LEASE_SECONDS, OUTAGE, SERVERS, Size, Weather

SKEW_SECONDS = LEASE_SECONDS / 4
SETTINGS = {
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "MONGODB_TIMEOUT_SECONDS": "3",
    "FAULT_CLOCK_SKEW_SECONDS": str(SKEW_SECONDS),
    "CONTEXT_MAX_TURNS": "6",
}
LIMITS: dict[str, Any] = {"redelivery_seconds": 3}
FUNCTIONS = ("chat", "sessions", "summary", "run")
BEFORE_SECONDS = 2.0
AFTER_SECONDS = 30.0
MOST_CHARACTERS = 600
MOST_LINES = 400
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_NOISE = re.compile(r'("lines"): \{"B": "[^"]*"\}')
Event = tuple[float, str]
Say = Callable[[str], None]


LONG = Size(turns=1000, users=5, kills=260, freezes=40, partitions=15, slow_spells=15, restarts=3)
SHORT = Size(turns=12, users=2, kills=6, freezes=2, partitions=1, slow_spells=1, restarts=1)


async def soak(house: House, size: Size, say: Say) -> tuple[dict[str, Any], Findings]:
    """Let the crowd talk in bad weather, then in good weather say goodbye, and examine everything.

    Returns the numbers of what happened, and what should not have.
    """
    started = time.monotonic()
    crowd = Crowd(house, size.users, turns=size.turns, seed=size.seed)
    weather = Weather(house, random.Random(size.seed), size)
    progress = asyncio.create_task(_tell_progress(crowd, weather, size, say))
    talking = asyncio.create_task(crowd.talk())
    blowing = asyncio.create_task(weather.blow(crowd.reached))
    # If all users are stuck, there is nothing more to wait for.
    await asyncio.wait([talking, blowing], return_when=asyncio.FIRST_COMPLETED)
    reached = asyncio.create_task(crowd.reached(1.0))
    await asyncio.wait([talking, reached], return_when=asyncio.FIRST_COMPLETED)
    crowd.enough()
    await talking
    for task in (blowing, reached, progress):
        task.cancel()
    await asyncio.gather(reached, progress, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        await blowing
    await asyncio.gather(*(_finish(house, user) for user in crowd.users))
    await asyncio.gather(*(_say_goodbye(user) for user in crowd.users))
    findings = Findings()
    await _settle(house, findings)
    bills = Bills(house.servers.model.requests, house.servers.ledger, house.storage.journal)
    for user in crowd.users:
        user.findings.add(await examine_session(house, user, bills))
        if user.findings:
            say(evidence(house, user))
        findings.add(user.findings)
    numbers = _numbers(crowd, weather, bills, house)
    return {**numbers, "minutes": round((time.monotonic() - started) / 60, 1)}, findings


async def _tell_progress(crowd: Crowd, weather: Weather, size: Size, say: Say) -> None:
    for step in range(1, 21):
        await crowd.reached(step / 20)
        say(f"{crowd.diary.turns.total()} of {size.turns} turns, {weather.counts['kills']} kills")


async def _finish(house: House, user: User) -> None:
    """Wait until everything that was acknowledged is answered. Nobody asks for it."""
    client = user.client
    waiting = {stream.message_id for stream in client.streams if stream.is_acknowledged and stream.message_id}
    try:
        async with asyncio.timeout(STUCK_SECONDS):
            while waiting:
                conversation = house.read(client)
                waiting = {message_id for message_id in waiting if not conversation.is_answered(message_id)}
                await a_moment()
    except TimeoutError:
        user.findings.stuck.append(f"{client.session}: the messages {sorted(waiting)} are not answered unasked")


async def _say_goodbye(user: User) -> None:
    """Whatever broke last is repaired by who comes next."""
    session, stuck = user.client.session, user.findings.stuck
    try:
        async with asyncio.timeout(STUCK_SECONDS):
            while (goodbye := await user.client.accepted("[echo:goodbye]")).finished_as == "failed":
                pass  # a connection to the model had been idle for too long
    except TimeoutError:
        stuck.append(f"{session} accepts no turn")
        return
    if goodbye.finished_as != "complete":
        stuck.append(f"{session} answers {goodbye.status} {goodbye.body.decode()}")


async def _settle(house: House, findings: Findings) -> None:
    try:
        async with asyncio.timeout(STUCK_SECONDS):
            await house.emulator.settled()
    except TimeoutError:
        findings.stuck.append(f"still running: {house.emulator.running()}")


def _numbers(crowd: Crowd, weather: Weather, bills: Bills, house: House) -> dict[str, Any]:
    diary, counts = crowd.diary, weather.counts
    nodes = [node for user in crowd.users for node in house.read(user.client).nodes]
    answers = [node for node in nodes if node["role"] == "assistant"]
    ahead = largest_skew(house.registry.journal, time.time() - time.monotonic())
    return {
        "turns": dict(sorted(diary.turns.items())),
        "kills": counts["kills"],
        "kills of run": counts["kills run"],
        "freezes": counts["freezes"],
        "partitions": {server: counts[f"partitions {server}"] for server in SERVERS},
        "slow": {server: counts[f"slow {server}"] for server in SERVERS},
        "restarts of MongoDB": counts["restarts MongoDB"],
        "clock skew, of a lease": round(2 * ahead / LEASE_SECONDS, 2),
        "followed": diary.followed,
        "stopped": diary.stopped,
        "left": diary.left,
        "sent twice": diary.sent_twice,
        "sent again": sum(len(again) for user in crowd.users for again in user.repeated.values()),
        "branches": len({(node["session_id"], node["branch"]) for node in nodes}),
        "answers": dict(Counter(answer["status"] for answer in answers)),
        "joined an answer": sum(len(steering_ids(answer)) for answer in answers),
        "model calls": sum(map(len, bills.model.values())),
        "summary calls": bills.summaries,
        "tool runs": sum(runs.total() for runs in bills.tools.values()),
        "finished unasked": len(diary.unasked),
        "longest until finished unasked, in seconds": round(max(diary.unasked, default=0.0), 1),
        "longest wait after a break, in leases": round(max(diary.waits, default=0.0) / LEASE_SECONDS, 1),
    }


# What is known of a session in which something was found.


def evidence(house: House, user: User) -> str:
    """Tell what happened, in order, while the messages that the findings name were answered."""
    key = house.read(user.client).key
    since, until = _window(user)
    events = [*_streams(user), *_table(house, key), *_model(house, user), *_logs(house, user.client.session)]
    lines = [f"{at - since:8.3f} {what[:MOST_CHARACTERS]}" for at, what in sorted(events) if since <= at <= until]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES // 2], "...", *lines[-MOST_LINES // 2 :]]
    return "\n".join([f"--- {key}", str(user.findings), *lines, "---"])


def _window(user: User) -> tuple[float, float]:
    """From before the first of the messages was sent until a while after the last was heard of; else everything."""
    named = set(_ID.findall(str(user.findings)))
    moments = [
        moment
        for stream in user.client.streams
        if stream.message_id in named or (stream.has_begun and stream.answer_id in named)
        for moment in (stream.sent_at, *(at for at, _ in stream.pieces[-1:]))
    ]
    if not moments:
        return 0.0, time.monotonic()
    return min(moments) - BEFORE_SECONDS, max(moments) + AFTER_SECONDS


def _streams(user: User) -> Iterator[Event]:
    for stream in user.client.streams:
        what = f"message {stream.message_id}" if stream.message_id else f"after {stream.replaces or stream.continues}"
        yield stream.sent_at, f"client sends: {what}"
        request_id = stream.headers.get("x-amzn-requestid")
        for at, piece in [*stream.pieces[:1], *stream.pieces[1:][-1:]]:
            yield at, f"client hears: {what} {stream.status} by {request_id}, cut {stream.cut}: {piece.decode()!r}"


def _table(house: House, key: str) -> Iterator[Event]:
    for passage in house.registry.journal:
        body: dict[str, Any] = passage.message.body
        place = body.get("Item") or body.get("Key") or {}
        if place.get("session_id", {}).get("S") == key or key in str(body.get("MessageBody")):
            raw = passage.message.raw.partition(b"\r\n\r\n")[2].decode()
            short = _NOISE.sub(r"\1", raw)
            yield passage.at, f"table {passage.message.name} {passage.answer.decode()!r}: {short}"


def _model(house: House, user: User) -> Iterator[Event]:
    for request in house.servers.model.requests:
        ids = [each for each in _ID.findall(str(request.body.get("input"))) if each in user.prompts]
        if ids:
            yield request.at, f"model is asked after {ids[-1]}"


def _logs(house: House, session: str) -> Iterator[Event]:
    return ((at, f"log {line}") for at, line in house.log.lines if session in line or line.startswith(OUTAGE))


# The program


async def run(size: Size) -> int:
    """Run a soak of its own servers, write its numbers down, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        async with (
            open_servers(Path(folder)) as servers,
            open_house(servers, SETTINGS, functions=FUNCTIONS, **LIMITS) as house,
        ):
            await house.warm_up()
            numbers, findings = await soak(house, size, lambda line: print(line, flush=True))
    numbers |= {"found": findings.counts, "seed": size.seed}
    print(json.dumps(numbers, indent=2))
    if findings:
        print(findings, file=sys.stderr)
        return 1
    if size.turns >= LONG.turns:
        SOAK.write_text(json.dumps({**numbers, "python": platform.python_version()}, indent=2) + "\n")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the turns and faults of a long soak")
    parser.add_argument("--seed", type=int, default=LONG.seed)
    options = parser.parse_args()
    logging.getLogger("local").setLevel(logging.ERROR)  # the killed are no news
    scaled = {name: round(getattr(LONG, name) * options.scale) for name in _SCALED}
    sys.exit(asyncio.run(run(replace(LONG, seed=options.seed, **scaled))))


_SCALED = ("turns", "kills", "freezes", "partitions", "slow_spells", "restarts")

if __name__ == "__main__":
    main()
