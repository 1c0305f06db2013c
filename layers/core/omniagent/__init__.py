"""OmniAgent: a session-aware AI chat runtime that streams, stops, resumes and never loses a turn."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniagent.ai.agent import Agent
    from omniagent.ai.approvals import Approver, ToolReply, ToolRequest
    from omniagent.ai.client_tools import ClientTool, ask_user, client_tool
    from omniagent.ai.context import Callbacks, RunContext
    from omniagent.ai.providers import get_llm_provider, register_provider
    from omniagent.ai.providers.fallback import FallbackProvider
    from omniagent.ai.providers.llm_provider import (
        LLMProvider,
        ModelFinish,
        ModelReasoning,
        ModelReasoningDone,
        ModelRequest,
        ModelText,
        ModelToolCall,
        ModelToolDelta,
        ModelToolStart,
        Overrides,
    )
    from omniagent.ai.providers.model_calls import ProviderPool
    from omniagent.ai.providers.scripted import Gate, ScriptedModel, ToolCall
    from omniagent.ai.result import AnswerStream, RunResult
    from omniagent.ai.runner import Runner
    from omniagent.ai.tools import Tool, tool
    from omniagent.errors import ConfigurationError, OmniAgentError, ToolError
    from omniagent.messages import Feedback, Usage
    from omniagent.persistence.adapter import MongoBackendAdapter
    from omniagent.persistence.contracts import DocumentModels
    from omniagent.persistence.documents import Message, Session, Summary, User
    from omniagent.persistence.mongo_registry import MongoTurnRegistry
    from omniagent.persistence.mongo_session import MongoSessionManager
    from omniagent.project import Project
    from omniagent.protocol.events import (
        DataChunk,
        ReasoningDelta,
        StreamEvent,
        TextDelta,
        ToolApprovalRequest,
        ToolInputAvailable,
        ToolOutputAvailable,
        ToolOutputError,
    )
    from omniagent.session.addresses import SessionAddress
    from omniagent.session.in_memory import InMemorySessionManager, InMemoryStore
    from omniagent.session.manager import SessionManager
    from omniagent.settings import Budget, Settings
    from omniagent.tracing import OmniAgentInstrumentor, trace_operation
    from omniagent.tracing.logs import setup_logging
    from omniagent.turns.hooks import TurnHooks
    from omniagent.turns.lease import TurnRegistry
    from omniagent.turns.ledger import Ledger
    from omniagent.turns.memory_ledger import MemoryLedger
    from omniagent.turns.memory_registry import MemoryRegistry
    from omniagent.turns.query import Query

_HOMES = {
    "Agent": "omniagent.ai.agent",
    "AnswerStream": "omniagent.ai.result",
    "Approver": "omniagent.ai.approvals",
    "Budget": "omniagent.settings",
    "Callbacks": "omniagent.ai.context",
    "ClientTool": "omniagent.ai.client_tools",
    "ConfigurationError": "omniagent.errors",
    "DataChunk": "omniagent.protocol.events",
    "DocumentModels": "omniagent.persistence.contracts",
    "FallbackProvider": "omniagent.ai.providers.fallback",
    "Feedback": "omniagent.messages",
    "Gate": "omniagent.ai.providers.scripted",
    "InMemorySessionManager": "omniagent.session.in_memory",
    "InMemoryStore": "omniagent.session.in_memory",
    "LLMProvider": "omniagent.ai.providers.llm_provider",
    "Ledger": "omniagent.turns.ledger",
    "MemoryLedger": "omniagent.turns.memory_ledger",
    "MemoryRegistry": "omniagent.turns.memory_registry",
    "Message": "omniagent.persistence.documents",
    "ModelFinish": "omniagent.ai.providers.llm_provider",
    "ModelReasoning": "omniagent.ai.providers.llm_provider",
    "ModelReasoningDone": "omniagent.ai.providers.llm_provider",
    "ModelRequest": "omniagent.ai.providers.llm_provider",
    "ModelText": "omniagent.ai.providers.llm_provider",
    "ModelToolCall": "omniagent.ai.providers.llm_provider",
    "ModelToolDelta": "omniagent.ai.providers.llm_provider",
    "ModelToolStart": "omniagent.ai.providers.llm_provider",
    "MongoBackendAdapter": "omniagent.persistence.adapter",
    "MongoSessionManager": "omniagent.persistence.mongo_session",
    "MongoTurnRegistry": "omniagent.persistence.mongo_registry",
    "OmniAgentError": "omniagent.errors",
    "OmniAgentInstrumentor": "omniagent.tracing",
    "Overrides": "omniagent.ai.providers.llm_provider",
    "Project": "omniagent.project",
    "ProviderPool": "omniagent.ai.providers.model_calls",
    "Query": "omniagent.turns.query",
    "ReasoningDelta": "omniagent.protocol.events",
    "RunContext": "omniagent.ai.context",
    "RunResult": "omniagent.ai.result",
    "Runner": "omniagent.ai.runner",
    "ScriptedModel": "omniagent.ai.providers.scripted",
    "Session": "omniagent.persistence.documents",
    "SessionAddress": "omniagent.session.addresses",
    "SessionManager": "omniagent.session.manager",
    "Settings": "omniagent.settings",
    "StreamEvent": "omniagent.protocol.events",
    "Summary": "omniagent.persistence.documents",
    "TextDelta": "omniagent.protocol.events",
    "Tool": "omniagent.ai.tools",
    "ToolReply": "omniagent.ai.approvals",
    "ToolApprovalRequest": "omniagent.protocol.events",
    "ToolCall": "omniagent.ai.providers.scripted",
    "ToolError": "omniagent.errors",
    "ToolInputAvailable": "omniagent.protocol.events",
    "ToolOutputAvailable": "omniagent.protocol.events",
    "ToolOutputError": "omniagent.protocol.events",
    "ToolRequest": "omniagent.ai.approvals",
    "TurnHooks": "omniagent.turns.hooks",
    "TurnRegistry": "omniagent.turns.lease",
    "Usage": "omniagent.messages",
    "User": "omniagent.persistence.documents",
    "ask_user": "omniagent.ai.client_tools",
    "client_tool": "omniagent.ai.client_tools",
    "get_llm_provider": "omniagent.ai.providers",
    "register_provider": "omniagent.ai.providers",
    "setup_logging": "omniagent.tracing.logs",
    "tool": "omniagent.ai.tools",
    "trace_operation": "omniagent.tracing",
}

__all__ = [
    "Agent",
    "AnswerStream",
    "Approver",
    "Budget",
    "Callbacks",
    "ClientTool",
    "ConfigurationError",
    "DataChunk",
    "DocumentModels",
    "FallbackProvider",
    "Feedback",
    "Gate",
    "InMemorySessionManager",
    "InMemoryStore",
    "LLMProvider",
    "Ledger",
    "MemoryLedger",
    "MemoryRegistry",
    "Message",
    "ModelFinish",
    "ModelReasoning",
    "ModelReasoningDone",
    "ModelRequest",
    "ModelText",
    "ModelToolCall",
    "ModelToolDelta",
    "ModelToolStart",
    "MongoBackendAdapter",
    "MongoSessionManager",
    "MongoTurnRegistry",
    "OmniAgentError",
    "OmniAgentInstrumentor",
    "Overrides",
    "Project",
    "ProviderPool",
    "Query",
    "ReasoningDelta",
    "RunContext",
    "RunResult",
    "Runner",
    "ScriptedModel",
    "Session",
    "SessionAddress",
    "SessionManager",
    "Settings",
    "StreamEvent",
    "Summary",
    "TextDelta",
    "Tool",
    "ToolApprovalRequest",
    "ToolCall",
    "ToolError",
    "ToolInputAvailable",
    "ToolOutputAvailable",
    "ToolOutputError",
    "ToolReply",
    "ToolRequest",
    "TurnHooks",
    "TurnRegistry",
    "Usage",
    "User",
    "ask_user",
    "client_tool",
    "get_llm_provider",
    "register_provider",
    "setup_logging",
    "tool",
    "trace_operation",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: a function pays only for what it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'omniagent' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
