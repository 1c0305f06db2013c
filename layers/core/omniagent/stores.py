"""What the stores of sessions and of running turns take and return.

A team that uses one hands these on. Whoever writes one implements `SessionManager`, `SessionDirectory` or
`TurnRegistry` with them.
"""

from typing import TYPE_CHECKING

from omniagent.lazy import lazy_names

if TYPE_CHECKING:
    from omniagent.persistence.mongodb import MongoDB as MongoDB
    from omniagent.session.live import Change as Change, SessionState as SessionState, Spot as Spot
    from omniagent.session.manager import (
        OpenTurns as OpenTurns,
        SessionAddress as SessionAddress,
        SessionDirectory as SessionDirectory,
    )
    from omniagent.session.window import PastTurn as PastTurn, RollingSummary as RollingSummary
    from omniagent.turns.registry import Chunk as Chunk, Signals as Signals
else:  # a type checker would take any name for one of `__getattr__`
    __all__, __getattr__, __dir__ = lazy_names(__name__)
