"""Sessions of one user in memory, and a look at what they leave behind."""

import asyncio

from omniagent import Agent, InMemorySessionManager, Settings, TurnHooks
from omniagent.ai.operator import TurnOperator
from omniagent.testing import InMemoryStore, MemoryRegistry, ScriptedModel
from omniagent.turns.lease import TurnRegistry

# A turn under test looks for its stop at once, and its lease outlives any pause of a busy machine.
QUICK = Settings(tick_seconds=0.02, lease_seconds=30.0)


class Sessions:
    """Sessions of one user in a store and a registry of the test's own."""

    def __init__(self, settings: Settings = QUICK) -> None:
        self.store = InMemoryStore()
        self.registry = MemoryRegistry()
        self.settings = settings

    def session(self, session_id: str = "chat") -> InMemorySessionManager:
        return InMemorySessionManager("ada", session_id, store=self.store, settings=self.settings)

    def runner(
        self,
        model: ScriptedModel,
        *tools: object,
        session: InMemorySessionManager | None = None,
        registry: TurnRegistry | None = None,
        hooks: TurnHooks = TurnHooks(),
    ) -> TurnOperator:
        agent = Agent("helper", "", list(tools))  # type: ignore[arg-type]
        return TurnOperator(
            agent, session or self.session(), provider=model, registry=registry or self.registry, hooks=hooks
        )

    async def are_free(self) -> bool:
        """Whether no turn holds the session `chat`, a slot of the user or this process."""
        held = await self.registry.running(self.session().key)
        return held is None and not len(self.store.open_turns) and not any(u.running for u in self.store.users.values())


def other_tasks() -> set["asyncio.Task[object]"]:
    """The tasks of this process besides the test: compare before and after."""
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}
