"""Sessions for the tests of every session manager."""

from collections.abc import Callable

from omniagent.session.manager import SessionManager
from omniagent.settings import Settings

Open = Callable[..., SessionManager]
SMALL = Settings(context_max_turns=3)
