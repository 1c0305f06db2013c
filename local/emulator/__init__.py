"""Lambda on a laptop: real processes, the real Runtime API, no Docker."""

from local.emulator.emulator import Emulator, Process, Result
from local.emulator.environment import State
from local.emulator.identity import Identity
from local.emulator.limits import Limits
from local.emulator.pool import Throttled

__all__ = ["Emulator", "Identity", "Limits", "Process", "Result", "State", "Throttled"]
