"""Who a span belongs to: session, user and turn, carried by every span below."""

from contextlib import AbstractContextManager, nullcontext

from . import spans
from .attributes import SESSION_ID, TURN_NUMBER, USER_ID


def bind_context(
    *, session_id: str | None = None, user_id: str | None = None, turn: int | None = None
) -> AbstractContextManager[None]:
    """Let every span opened inside, in this task and in those it starts, carry what is given. Calls nest.

    The session and the user travel under the context keys that other OpenInference instrumentations read too.
    """
    recorder = spans.active_recorder()
    if recorder is None:
        return nullcontext()
    given = {SESSION_ID: session_id, USER_ID: user_id, TURN_NUMBER: turn}
    return recorder.bind({name: value for name, value in given.items() if value is not None})
