"""What is refused before anything is stored."""

from dataclasses import replace

import pytest

from omniagent import MongoSessionManager, Query, SessionManager
from omniagent.errors import InvalidRequest, RequestError, TooManyTurns
from omniagent.session.ids import new_id
from omniagent.session.live import MAX_TURNS, SessionHead, SessionState
from omniagent.session.tree import Place
from omniagent.turns.state import Refuse, Run, decide
from tests.fixtures.conversation import QUICK, Conversation, seen


async def refused(conversation: Conversation, query: str | Query, kind: type[RequestError]) -> str:
    """Ask what is to be refused. Nothing may be stored, asked or held."""
    asked_before = len(conversation.model.requests)
    with pytest.raises(kind) as refusal:
        await conversation.ask(query)
    assert len(conversation.model.requests) == asked_before
    head = await conversation.session.head()
    assert head is None or head.turn is None
    return refusal.value.public


async def test_an_empty_message(conversation: Conversation) -> None:
    for text in ("", "   ", "\n"):
        assert await refused(conversation, text, InvalidRequest) == "The message is empty."
    assert conversation.messages == []


async def test_a_message_that_is_too_long(conversation: Conversation) -> None:
    asked = conversation.but(settings=replace(QUICK, max_message_chars=10))
    assert await refused(asked, "x" * 11, InvalidRequest) == "The message is longer than 10 characters."
    assert asked.messages == []


BAD_IDS = ("a b", "a/b", "é", "x" * 129, "a:b", "a\n", ".", "..", ".a")


async def test_ids_that_are_no_plain_tokens(conversation: Conversation) -> None:
    for bad in BAD_IDS:
        await refused(conversation, Query("Hello?", bad), InvalidRequest)
        with pytest.raises(InvalidRequest):
            MongoSessionManager(conversation.store, conversation.user, bad)


def test_a_session_that_has_reached_its_last_turn() -> None:
    for number, kind in ((MAX_TURNS - 1, Run), (MAX_TURNS, Refuse)):
        leaf = Place(order=2 * number + 1)
        state = SessionState(SessionHead(1, leaf), leaf)
        assert isinstance(decide(state, Query("More?", "m2"), now=SessionManager.now()), kind)


async def test_more_turns_at_once_than_a_user_may_have(conversation: Conversation) -> None:
    asked = conversation.but(settings=replace(QUICK, max_running_turns_per_user=2))
    running = [asked.but(session_id=new_id()) for _ in range(2)]
    turns = [await each.start("[stall] [echo:one two three]") for each in running]
    for turn in turns:
        await seen(turn, "text-delta")
    await refused(asked, "Hello?", TooManyTurns)
    assert asked.messages == []
    await running[0].stop()
    await turns[0].result()
    await asked.ask("[echo:Now.]")
    await running[1].stop()
    await turns[1].result()


async def test_another_user_does_not_count(conversation: Conversation) -> None:
    asked = conversation.but(settings=replace(QUICK, max_running_turns_per_user=1))
    turn = await asked.start("[stall:first]")
    await asked.but(user=f"{asked.user}-other").ask("[echo:Hi.]")
    await asked.stop()
    await turn.result()
