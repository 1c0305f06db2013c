"""OmniAgent: a session-aware AI chat runtime that streams, stops, resumes and never loses a turn."""

from typing import TYPE_CHECKING

from omniagent.lazy import lazy_names

__version__ = "0.3.0"

if TYPE_CHECKING:
    from omniagent.ai.agent import Agent as Agent, Instructions as Instructions
    from omniagent.ai.approvals import (
        Approver as Approver,
        ApproverRule as ApproverRule,
        ToolReply as ToolReply,
        ToolRequest as ToolRequest,
    )
    from omniagent.ai.client_tools import ClientTool as ClientTool, ask_user as ask_user, client_tool as client_tool
    from omniagent.ai.context import Callbacks as Callbacks, RunContext as RunContext
    from omniagent.ai.providers.llm_provider import Overrides as Overrides
    from omniagent.ai.result import (
        AnswerStream as AnswerStream,
        RunResult as RunResult,
        StreamPosition as StreamPosition,
    )
    from omniagent.ai.runner import Runner as Runner
    from omniagent.ai.tools import Tool as Tool, tool as tool
    from omniagent.budget.spending import Spending as Spending, SpendingCounter as SpendingCounter
    from omniagent.errors import (
        ConfigurationError as ConfigurationError,
        OmniAgentError as OmniAgentError,
        ToolError as ToolError,
    )
    from omniagent.messages import (
        CallRequest as CallRequest,
        DataPart as DataPart,
        Feedback as Feedback,
        FinishReason as FinishReason,
        Part as Part,
        ReasoningPart as ReasoningPart,
        Status as Status,
        SourcePart as SourcePart,
        SteeringPart as SteeringPart,
        StepPart as StepPart,
        TextPart as TextPart,
        ToolPart as ToolPart,
        Usage as Usage,
    )
    from omniagent.persistence.adapter import MongoBackendAdapter as MongoBackendAdapter
    from omniagent.persistence.documents import DocumentModels as DocumentModels
    from omniagent.persistence.documents import Message as Message, Session as Session, Summary as Summary, User as User
    from omniagent.persistence.mongo_registry import MongoTurnRegistry as MongoTurnRegistry
    from omniagent.persistence.mongo_session import MongoSessionManager as MongoSessionManager
    from omniagent.persistence.store import ConversationStore as ConversationStore
    from omniagent.project import AgentRule as AgentRule, Project as Project
    from omniagent.protocol.events import (
        DataChunk as DataChunk,
        ReasoningDelta as ReasoningDelta,
        StreamEvent as StreamEvent,
        TextDelta as TextDelta,
        ToolApprovalRequest as ToolApprovalRequest,
        ToolInputAvailable as ToolInputAvailable,
        ToolOutputAvailable as ToolOutputAvailable,
        ToolOutputError as ToolOutputError,
    )
    from omniagent.session.in_memory import InMemorySessionManager as InMemorySessionManager
    from omniagent.session.live import (
        LiveTurn as LiveTurn,
        Place as Place,
        QueuedMessage as QueuedMessage,
        SessionHead as SessionHead,
        SessionMessage as SessionMessage,
    )
    from omniagent.session.manager import SessionInfo as SessionInfo, SessionManager as SessionManager
    from omniagent.session.query import Query as Query
    from omniagent.session.summaries import Summarized as Summarized
    from omniagent.settings import Budget as Budget, Busy as Busy, Settings as Settings
    from omniagent.tracing import (
        OmniAgentInstrumentor as OmniAgentInstrumentor,
        Span as Span,
        SpanKind as SpanKind,
        trace_operation as trace_operation,
    )
    from omniagent.tracing.logs import setup_logging as setup_logging
    from omniagent.turns.setup import TurnHooks as TurnHooks
    from omniagent.turns.registry import TurnRegistry as TurnRegistry
else:  # a type checker would take any name for one of `__getattr__`
    __all__, __getattr__, __dir__ = lazy_names(__name__, modules=("errors",))
