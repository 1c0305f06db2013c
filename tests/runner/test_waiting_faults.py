"""Kills between the answer, the tool and the continuation; requests that expire."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from omniagent import ToolRequest
from omniagent.errors import NotWaiting, ReplyConflict, RequestExpired, ToolOutcomeUnknown
from omniagent.messages import ToolPart
from omniagent.session.in_memory import InMemorySessionManager
from omniagent.session.live import Change
from omniagent.testing import ScriptedModel
from omniagent.turns.registry import Chunk
from tests.fixtures.answers import answer_of
from tests.fixtures.conversation import QUICK
from tests.runner.sessions import REFUND, Refunds, Sessions

Json = dict[str, Any]


class Witnessed(InMemorySessionManager):
    """Keeps a copy of the store as it is when a turn goes on, before anything of it has run."""

    copy: dict[str, Any] | None = None
    journal = ""

    async def write(self, change: Change) -> bool:
        is_written = await super().write(change)
        if change.before.waiting is not None and change.after.running is not None:
            self.copy, self.journal = deepcopy(self.store.sessions), change.after.running.journal
        return is_written


async def continued(refunds: Refunds) -> tuple[Witnessed, ToolRequest, list[bytes]]:
    """Run a turn that waits and goes on. Returns the session, what was asked and the journal of the second run."""
    sessions = Sessions()
    session = Witnessed("ada", "chat", store=sessions.store, settings=QUICK)
    model = ScriptedModel(["Let me see.", REFUND], "Done at last.")
    runner = sessions.runner(model, refunds.tool, session=session)
    request = (await runner.run("Refund 42")).requests[0]
    stream = await runner.reply(request.approve())
    await stream.result()
    await stream.ended()
    chunks = await sessions.registry.read(session.key, session.journal)
    return session, request, [line for chunk in chunks for line in chunk.lines.split(b"\n")]


async def killed(witness: Witnessed, lines: list[bytes]) -> Sessions:
    """The sessions after a process that has written these lines died."""
    dead = Sessions()
    assert witness.copy is not None
    dead.store.sessions.update(deepcopy(witness.copy))
    if lines:
        chunk = Chunk(0, "dead", witness.now(), b"\n".join(lines))
        await dead.registry.append(witness.key, witness.journal, chunk)
    dead.pass_by()
    return dead


@pytest.mark.parametrize("is_replied", [False, True], ids=["unasked", "by the same reply"])
async def test_a_run_killed_at_any_line_continues_without_repeating_calls(is_replied: bool) -> None:
    refunds = Refunds()
    witness, request, lines = await continued(refunds)
    whole = await answer_of(witness, 1)
    assert whole is not None
    for count in range(len(lines)):
        dead = await killed(witness, lines[:count])
        refunds.orders.clear()
        runner = dead.runner(ScriptedModel("Done at last."), refunds.tool)
        with pytest.raises(ReplyConflict):
            await runner.reply(request.deny())
        stream = await (runner.reply(request.approve()) if is_replied else runner.take_up())
        assert stream is not None
        result = await stream.result()
        await stream.ended()
        assert (result.status, result.message.id) == ("complete", request.message_id)
        written = b"\n".join(lines[:count])
        has_run, is_known = b'{"record":"approved"' in written, b"tool-output-available" in written
        assert refunds.orders == ([] if has_run else ["42"])
        [part] = [part for part in result.message.parts if isinstance(part, ToolPart)]
        if has_run and not is_known:
            assert part.public_error == ToolOutcomeUnknown.public
        else:
            assert list(result.message.parts) == list(whole.parts)
        assert (result.message.metadata["stepCount"], result.text) == (2, whole.text)
        await dead.store.open_turns.finish()
        assert await dead.are_free()


async def test_what_nobody_answered_in_time_is_denied() -> None:
    refunds, sessions = Refunds(), Sessions(replace(QUICK, request_expiry_days=0.0))
    runner = sessions.runner(ScriptedModel(REFUND), refunds.tool)
    request = (await runner.run("Refund 42")).requests[0]
    with pytest.raises(RequestExpired):
        await runner.reply(request.approve())
    await runner.take_up()
    answer = await answer_of(sessions.session(), 1)
    assert answer is not None
    assert (answer.status, answer.metadata["stopReason"]) == ("cancelled", "expired")
    [part] = [part for part in answer.parts if isinstance(part, ToolPart)]
    assert part.is_denied
    with pytest.raises((RequestExpired, NotWaiting)):
        await runner.reply(request.approve(), message_id=request.message_id)
    assert refunds.orders == []
    await sessions.store.open_turns.finish()
    assert await sessions.are_free()
