"""What tests of an agent need: a model that plays a script, and stores of their own."""

from typing import TYPE_CHECKING

from omniagent.lazy import lazy_names

if TYPE_CHECKING:
    from omniagent.ai.providers.scripted import Gate as Gate, ScriptedModel as ScriptedModel, ToolCall as ToolCall
    from omniagent.budget.spending import MemoryCounter as MemoryCounter
    from omniagent.session.in_memory import InMemoryStore as InMemoryStore
    from omniagent.turns.registry import MemoryRegistry as MemoryRegistry
else:  # a type checker would take any name for one of `__getattr__`
    __all__, __getattr__, __dir__ = lazy_names(__name__)
