"""The turns that run in this process, so that whoever closes their store can end them in order first."""

import asyncio
from typing import Protocol


class OpenTurn(Protocol):
    """A running turn, as its owner sees it."""

    def shut_down(self) -> None:
        """End with what there is."""

    async def ended(self) -> None:
        """Wait until everything is stored and released. Never raises."""


class OpenTurns:
    """The running turns of one store."""

    def __init__(self) -> None:
        self._turns: set[OpenTurn] = set()

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: OpenTurn) -> None:
        self._turns.add(turn)

    def discard(self, turn: OpenTurn) -> None:
        self._turns.discard(turn)

    def shut_down(self) -> None:
        """Tell every turn to end with what it has. Safe to call from a signal handler of the event loop."""
        for turn in list(self._turns):
            turn.shut_down()

    async def finish(self) -> None:
        """End every turn and wait until each has stored its answer."""
        while self._turns:
            turns = list(self._turns)
            for turn in turns:
                turn.shut_down()
            await asyncio.gather(*(turn.ended() for turn in turns))
            self._turns.difference_update(turns)
