"""What one release has stored, the other goes on with, in both directions."""

import json

import httpx
import pytest

from tests.fixtures.calls import Json, User
from tests.releases.conftest import Releases, Version

REFUND = '[tool:refund {"order": 42, "euros": 500}] [then] [echo:It is done.]'
both_directions = pytest.mark.parametrize(
    ("first", "second"), [("older", "today"), ("today", "older")], ids=["upgrade", "rollback"]
)


def status(events: list[Json]) -> str:
    found: str = events[-1]["data"]["status"]
    return found


async def texts(user: User) -> list[str]:
    return ["".join(part.get("text", "") for part in message["parts"]) for message in await user.messages()]


@both_directions
async def test_turns_alternate_and_both_see_one_history(first: Version, second: Version, releases: Releases) -> None:
    one, other = releases.callers(first, second)
    for number in range(8):
        user = (one, other)[number % 2]
        assert (
            status(await user.ask(f"[tool:calculator] What is {number} * 2? [then] [echo:Answer {number}.]"))
            == "complete"
        )
    emulator = releases.products[second].emulator
    done = await emulator.invoke("summary", json.dumps({"session_id": one.key}).encode())
    assert json.loads(done.payload)["status"] in ("summarized", "unchanged"), done
    assert status(await one.ask("[echo:Answer 8.]")) == "complete"
    history = await texts(one)
    assert history == await texts(other)
    assert [text for text in history if text.startswith("Answer")] == [f"Answer {number}." for number in range(9)]


@both_directions
async def test_a_running_turn_is_followed_and_stopped(first: Version, second: Version, releases: Releases) -> None:
    one, other = releases.callers(first, second)
    async with one.asking("[stall][echo:What was said before the silence]") as answer:
        await answer.until("text-delta")
        async with other.resuming() as follower:
            await follower.until("text-delta")
            assert (await other.cancel()).status_code == 202
            assert status(await follower.rest()) == status(await answer.rest()) == "cancelled"
    assert await texts(one) == await texts(other)


@both_directions
async def test_a_waiting_turn_is_replied_to(first: Version, second: Version, releases: Releases) -> None:
    one, other = releases.callers(first, second)
    assert status(await one.ask(REFUND)) == "waiting"
    [request] = (await other.call("GET", "/approvals")).json()["approvals"]
    replied = await other.call("POST", f"/chat/approvals/{request['id']}", json={"approved": True})
    assert replied.status_code == 200, replied.text
    await releases.settled()
    assert [text.endswith("It is done.") for text in await texts(one)] == [False, True]


@both_directions
async def test_a_turn_whose_process_died_is_continued(first: Version, second: Version, releases: Releases) -> None:
    one, other = releases.callers(first, second)
    emulator = releases.products[first].emulator
    async with one.asking("[slow:50][long:60]") as answer:
        await answer.until("text-delta")
        [process] = [each for each in emulator.running("chat") if one.session.encode() in each.event]
        emulator.kill(process.pid)
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.rest()
    releases.let_lease_pass(one)
    async with other.resuming() as answer:
        assert status(await answer.rest()) == "complete"
    assert await texts(one) == await texts(other)


@both_directions
async def test_a_message_in_line_is_answered(first: Version, second: Version, releases: Releases) -> None:
    one, other = releases.callers(first, second)
    async with one.asking("[slow:20][long:40]") as answer:
        await answer.until("text-delta")
        message = {"session_id": one.session, "query": "[echo:The second]", "busy": "queue"}
        accepted = await other.call("POST", "/chat?background=true", json=message)
        assert accepted.status_code == 202, accepted.text
        assert status(await answer.rest()) == "complete"
    run = releases.products[second].emulator
    await run.invoke("run", json.dumps({"kind": "run", "session_id": one.key}).encode())
    assert (await texts(one))[-1] == (await texts(other))[-1] == "The second"
