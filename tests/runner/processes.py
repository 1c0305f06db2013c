"""Processes that a test can kill: from then on nothing that they do has an effect, and they clean nothing up."""

import asyncio
from typing import Any

from omniagent import InMemorySessionManager, InMemoryStore, MemoryRegistry, SessionManager, Settings, TurnRegistry


class Process:
    """One process that answers a session of a shared store, under a shared registry."""

    def __init__(self, store: InMemoryStore, registry: MemoryRegistry, settings: Settings) -> None:
        self.is_dead = False
        session = InMemorySessionManager("ada", "chat", store=store, settings=settings)
        self.session: SessionManager = _mortal(InMemorySessionManager, SessionManager, session, self)
        self.registry: TurnRegistry = _mortal(MemoryRegistry, TurnRegistry, registry, self)


def _mortal(kind: type[Any], interface: type[Any], shared: Any, process: Process) -> Any:
    """Return an object that does what `shared` does, and hangs in every call once its process is dead."""
    mortal: Any = object.__new__(type(f"Mortal{kind.__name__}", (kind,), _calls(interface, shared, process)))
    for name in () if interface is TurnRegistry else vars(shared):
        setattr(mortal, name, getattr(shared, name))
    return mortal


def _calls(interface: type[Any], shared: Any, process: Process) -> dict[str, Any]:
    def call(name: str) -> Any:
        async def awaited(_: object, *args: Any, **kwargs: Any) -> Any:
            if process.is_dead:
                await asyncio.get_running_loop().create_future()
            return await getattr(shared, name)(*args, **kwargs)

        return awaited

    return {name: call(name) for name in interface.__abstractmethods__ if name != "past_turns"}
