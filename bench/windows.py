"""Times what a turn reads of its session: in a short history, and in a long one of many branches."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from bench.client import percentile
from bench.figure import Figure
from local.mongod import Mongod
from omniagent import MongoBackendAdapter, MongoSessionManager, Query, Settings
from omniagent.messages import TextPart
from omniagent.persistence.store import ConversationStore
from omniagent.persistence.stored_session import message_fields, to_bson
from omniagent.session.live import ROOT, Change, Place, SessionHead, SessionMessage, Spot
from omniagent.session.window import RollingSummary

SHORT = 10
SETTINGS = Settings(context_max_turns=SHORT - 1)
"""The window has as many messages in the short history as in the long one."""
FORKS_IN_WINDOW = (6, 3)
"""How many turns before the end the last branches begin, each in the one before it."""


def read_windows(turns: int, branches: int, rounds: int) -> list[Figure]:
    """Load both sessions in turn, and compare the medians: for a message as pages send it, and without its parent."""
    with Mongod() as mongod:
        (short, long), (short_alone, long_alone) = asyncio.run(_medians(mongod.uri, turns, branches, rounds))
    name, beside = f"window read at {turns:,} turns and {branches:,} branches", f"{SHORT} turns"
    note = "its id is looked for on every branch"
    return [
        Figure(name, "ms", long, {beside: short}, long / short, 1.1),
        Figure(
            "the same without a parent", "ms", long_alone, {beside: short_alone}, long_alone / short_alone, note=note
        ),
    ]


async def _medians(uri: str, turns: int, branches: int, rounds: int) -> list[tuple[float, float]]:
    async with MongoBackendAdapter(uri) as store:
        sessions = [await _grown(store, "short", SHORT, 0), await _grown(store, "long", turns, branches)]
        leaves = [(await session.load(None)).head.leaf.node for session in sessions]
        times: list[list[float]] = [[], [], [], []]
        for _ in range(rounds):
            for number, taken in enumerate(times):
                session, parent = sessions[number % 2], leaves[number % 2] if number < len(sessions) else None
                began = time.perf_counter()
                state = await session.load(Query("And now?", "new", parent=parent))
                taken.append((time.perf_counter() - began) * 1000)
                if len(state.turns) != SHORT or state.summary is None:
                    raise RuntimeError(f"{len(state.turns)} turns were read")
    short, long, short_alone, long_alone = (percentile(taken, 0.5) for taken in times)
    return [(short, long), (short_alone, long_alone)]


async def _grown(store: ConversationStore, name: str, turns: int, branches: int) -> MongoSessionManager:
    """Create a session with this many turns on its active path, which ends in the last of the branches."""
    session = MongoSessionManager(store, "bench", name, settings=SETTINGS)
    leaf, messages = _history(turns, branches)
    while some := list(islice(messages, 5_000)):
        model = store.models.message
        documents = [to_bson(model(**message_fields(session.key, message))) for message in some]
        await store.messages.insert_many(documents, ordered=False)
    if not await session.write(Change(SessionHead(), SessionHead(1, leaf, branches))):
        raise RuntimeError("the session was not written")
    summarized = leaf.up_to(turns - SHORT + 1)
    summary = RollingSummary("They said hello.", 5, 1, max(1, summarized.turn_number), summarized.branch)
    if not await session.add_summary(summary, leaf):
        raise RuntimeError("the summary was not stored")
    return session


def _history(turns: int, branches: int) -> tuple[Place, Iterator[SessionMessage]]:
    """Return the leaf, and the messages of all branches."""
    label = f"{turns}-{branches}"
    leaf = Place(f"{label}-0-{2 * turns + 1}", 2 * turns + 1)
    runs: list[tuple[Place, int]] = [(ROOT, 2 * turns + 1)]
    chosen = random.Random(0)
    nested = FORKS_IN_WINDOW[: branches if branches < len(FORKS_IN_WINDOW) else None]
    for branch in range(1, branches - len(nested) + 1):
        fork = Spot.after(Place("", 2 * chosen.randrange(1, turns)), fork=branch)
        runs.append((Place("", fork.lineage[-1][1], branch, fork.lineage), fork.lineage[-1][1] + 1))
    for number, before_end in enumerate(nested if branches else (), branches - len(nested) + 1):
        order = 2 * (turns - before_end)
        spot = Spot.after(replace(leaf, order=order), fork=number)
        runs.append((Place("", order, number, spot.lineage), 2 * turns + 1))
        leaf = Place(f"{label}-{number}-{2 * turns + 1}", 2 * turns + 1, number, spot.lineage)
    return leaf, _messages(label, runs)


def _messages(label: str, runs: Sequence[tuple[Place, int]]) -> Iterator[SessionMessage]:
    for before, last in runs:
        parent = before.node
        for order in range(before.order + 1, last + 1):
            message = _message(replace(before, node=f"{label}-{before.branch}-{order}", order=order), parent)
            parent = message.node
            yield message


def _message(place: Place, parent: str) -> SessionMessage:
    parts = [TextPart(text="Something was said here, and it was neither long nor short.")]
    return SessionMessage(
        place.node,
        "assistant" if place.order % 2 else "user",
        place.turn_number,
        parts,
        parent=parent,
        branch=place.branch,
        lineage=place.lineage,
    )


if __name__ == "__main__":
    print(*read_windows(100_000, 1_000, 500), sep="\n")
