"""Processes whose calls of the store and the registry a test can lead astray."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from omniagent import SessionManager, TurnRegistry
from omniagent.errors import OmniAgentError, RegistryUnavailable, StorageUnavailable
from omniagent.testing import MemoryRegistry
from tests.runner.sessions import Sessions

Call = Callable[..., Awaitable[Any]]


class Process:
    """One process that answers a session of a shared store, under a shared registry.

    Once it is dead nothing that it does has an effect, and it cleans nothing up.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.is_dead = False
        self._hanging: list[asyncio.Future[None]] = []
        session, registry = sessions.session(), sessions.registry
        self.session: SessionManager = self._led_astray(type(session), SessionManager, session)
        self.registry: TurnRegistry = self._led_astray(MemoryRegistry, TurnRegistry, registry)

    async def call(self, name: str, call: Call, unavailable: type[OmniAgentError], *args: Any) -> Any:
        """Do one call of the store or the registry, with these arguments."""
        await self.hang_if_dead()
        return await call(*args)

    async def hang_if_dead(self) -> None:
        if self.is_dead:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hanging.append(future)  # or whoever waits for it is garbage
            await future

    def _led_astray(self, kind: type[Any], interface: type[Any], shared: Any) -> Any:
        """Return an object that does what `shared` does, through `call`."""
        unavailable = RegistryUnavailable if interface is TurnRegistry else StorageUnavailable

        def method(name: str) -> Any:
            async def through(_: object, *args: Any, **kwargs: Any) -> Any:
                return await self.call(name, partial(getattr(shared, name), **kwargs), unavailable, *args)

            return through

        methods = {name: method(name) for name in interface.__abstractmethods__}
        instance: Any = object.__new__(type(f"Led{kind.__name__}", (kind,), methods))
        for name in () if interface is TurnRegistry else vars(shared):
            setattr(instance, name, getattr(shared, name))
        return instance


class FaultyProcess(Process):
    """Goes wrong at its n-th call, in one way."""

    def __init__(self, sessions: Sessions, *, at: int, how: str) -> None:
        super().__init__(sessions)
        self.went_wrong_in: str | None = None
        self.caller: asyncio.Task[Any] | None = None
        self._calls = 0
        self._at = at
        self._how = how

    async def call(self, name: str, call: Call, unavailable: type[OmniAgentError], *args: Any) -> Any:
        self._calls += name != "signals"  # its number depends on the time
        if self._calls != self._at or self.went_wrong_in:
            return await call(*args)
        self.went_wrong_in = name
        match self._how:
            case "refused":
                raise unavailable("down")
            case "answer lost":
                await call(*args)
                raise unavailable("the answer was lost")
            case "cancelled before":
                await self._cancel()
                return await call(*args)
            case _:
                result = await call(*args)
                await self._cancel()
                return result

    async def _cancel(self) -> None:
        assert self.caller is not None
        self.caller.cancel()
        await asyncio.sleep(0)


async def cancel_all_but(living: "set[asyncio.Task[Any]]") -> None:
    """End all tasks but these. Those of dead processes wait for ever: each is cancelled until it ends."""
    while others := asyncio.all_tasks() - living - {asyncio.current_task()}:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=0.005)
