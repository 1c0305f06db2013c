"""What is refused before anything is stored."""

import pytest

from omniagent import Query
from omniagent.errors import InvalidRequest
from omniagent.testing import ScriptedModel
from tests.runner.sessions import QUICK, Sessions

TOO_LONG = "x" * (QUICK.max_message_chars + 1)
BAD_IDS = ("a b", "a/b", "é", "x" * 129, "a:b", "a\n", ".", "..", ".a")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        *((Query(text), "The message is empty.") for text in ("", "   ", "\n")),
        (Query(TOO_LONG), f"The message is longer than {QUICK.max_message_chars} characters."),
        (Query("Hello", busy="later"), "busy"),  # type: ignore[arg-type]
        *((Query("Hello", message_id), "id must be 1 to 128") for message_id in BAD_IDS),
    ],
)
async def test_a_message_that_is_refused_leaves_nothing(query: Query, reason: str) -> None:
    sessions, model = Sessions(), ScriptedModel()
    runner = sessions.runner(model)
    for send in (runner.run, runner.accept):
        with pytest.raises(InvalidRequest, match=reason):
            await send(query)
    assert (model.requests, sessions.store.sessions) == ([], {})


def test_a_session_id_is_a_plain_token() -> None:
    for session_id in BAD_IDS:
        with pytest.raises(InvalidRequest):
            Sessions().session(session_id)
