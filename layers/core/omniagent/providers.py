"""What providers need: the interface of a model, its events, and the providers of this package."""

from typing import TYPE_CHECKING

from omniagent.lazy import lazy_names

if TYPE_CHECKING:
    from omniagent.ai.providers import (
        ProviderFactory as ProviderFactory,
        ProviderPool as ProviderPool,
        get_llm_provider as get_llm_provider,
        register_provider as register_provider,
    )
    from omniagent.ai.providers.fallback import FallbackProvider as FallbackProvider
    from omniagent.ai.providers.llm_provider import (
        LLMProvider as LLMProvider,
        ModelEvent as ModelEvent,
        ModelFinish as ModelFinish,
        ModelReasoning as ModelReasoning,
        ModelReasoningDone as ModelReasoningDone,
        ModelRequest as ModelRequest,
        ModelReplaced as ModelReplaced,
        ModelSource as ModelSource,
        ModelText as ModelText,
        ModelToolCall as ModelToolCall,
        ModelToolDelta as ModelToolDelta,
        ModelToolStart as ModelToolStart,
        OutputFormat as OutputFormat,
        ToolSpec as ToolSpec,
    )
    from omniagent.messages import ChatMessage as ChatMessage
else:  # a type checker would take any name for one of `__getattr__`
    __all__, __getattr__, __dir__ = lazy_names(__name__)
