"""`Project`: the one object a team configures. Every function imports it, so what it names works in all of them.

project = Project(agent=agent, documents=DocumentModels(session=Ticket), providers={"acme": acme})
project = Project(agents={"support": support, "sales": sales})  # each session has one of them
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic

from omniagent.ai.agent import Agent
from omniagent.ai.providers import ProviderFactory, check_registration
from omniagent.ai.providers.llm_provider import LLMProvider
from omniagent.ai.result import Output_co
from omniagent.errors import ConfigurationError, Forbidden, InvalidRequest, OmniAgentError
from omniagent.session.ids import is_id
from omniagent.session.live import SessionHead
from omniagent.settings import Budget, Settings, checked_defaults
from omniagent.team_code import team_code
from omniagent.validation import check, check_async, check_fields, check_rule

if TYPE_CHECKING:  # Beanie takes a quarter of a cold start: only a project with documents of its own imports it here
    from omniagent.ai.approvals import ApproverRule
    from omniagent.persistence.documents import DocumentModels


def _check_documents(where: str, documents: object) -> None:
    from omniagent.persistence.documents import DocumentModels  # whoever passes one has imported it already

    if not isinstance(documents, DocumentModels):
        raise ConfigurationError(f"{where} must be DocumentModels(…), not {documents!r:.100}")


AgentRule = Callable[[str, str | None, str | None], str | Awaitable[str]]
"""Chooses the agent of a new session: a function of the user, the category and the name that was asked for."""


def _check_agents(agent: Agent | None, agents: Mapping[str, Agent]) -> None:
    if (agent is None) == (not agents):
        raise ConfigurationError("Project needs one of the two: agent=Agent(…), or agents={'support': Agent(…), …}")
    if wrong := next((name for name in agents if not is_id(name)), None):
        raise ConfigurationError(f"Project: agents: the name {wrong!r:.100} may hold only letters, digits, _ . ~ and -")


@dataclass(frozen=True, kw_only=True, eq=False)
class Project(Generic[Output_co]):
    """The configuration of a deployment. A mistake raises `ConfigurationError` when it is created."""

    agent: Agent[Any, Output_co] | None = None
    """The agent of all sessions."""
    agents: Mapping[str, Agent[Any, Any]] = field(default_factory=dict)
    """Several agents by name, in place of `agent`. A session's first message chooses one; the first is the default."""
    choose_agent: Annotated["AgentRule | None", check(check_rule, "user", "category", "name")] = None
    """Decides which of `agents` a new session gets: a function of the user, the category and the name that the first
    message asks for, or None. It returns a name, and may be async.

    None: the one that is asked for, else the first.
    """
    documents: Annotated["DocumentModels | None", check(_check_documents)] = None
    """Document classes of your own; None takes OmniAgent's."""
    providers: Mapping[str, ProviderFactory | LLMProvider] = field(default_factory=dict)
    """Model providers by the name or the prefix of their models, as factories or as finished providers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of this project by the names of `Settings`. The environment wins over them."""
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    """What users may spend, by their category. Other users have the budget of the settings."""
    on_erase: Annotated[
        Callable[[str, str | None], Awaitable[None]] | None, check(check_async, "user", "session_id")
    ] = None
    """Deletes what you have stored elsewhere: of a user's session, or of a user with everything (None)."""
    approvers: Annotated["ApproverRule | None", check(check_rule, "approver", "request")] = None
    """Says who may approve what tools ask for: a function of the `Approver` and the `ToolRequest`, async or not.

    None: whoever asked the question, and nobody else.
    """

    def __post_init__(self) -> None:
        check_fields("Project", self)
        _check_agents(self.agent, self.agents)
        checked_defaults(dict(self.settings))
        for name, provider in self.providers.items():
            check_registration(f"Project: providers: {name!r}", provider)

    @cached_property
    def all_agents(self) -> Mapping[str, Agent[Any, Any]]:
        """Every agent by its name, the default first."""
        return self.agents if self.agent is None else {self.agent.name: self.agent}

    async def name_agent(self, user: str, category: str | None, name: str | None, known: str | None = None) -> str:
        """Return the name of a session's agent: the `known` one, or that of a new session. `name` is the request's.

        Raises `InvalidRequest` for an unknown agent or another one than the session's, `Forbidden` if the rule chooses
        another one, and `ConfigurationError` if the project no longer has the session's agent.
        """
        if name is not None and name not in self.agents:
            raise InvalidRequest("agent: there is no such agent.")
        if known is not None:
            SessionHead(agent=known).check_agent(name)
            if known not in self.agents:
                raise ConfigurationError(
                    f"the session's agent {known!r} is not in Project(agents=…) any more: add it again under this "
                    "name, or delete its sessions"
                )
            return known
        if self.choose_agent is None:
            return name or next(iter(self.agents))
        with team_code("Project(choose_agent=…) failed", ConfigurationError, passes=(OmniAgentError,)):
            chosen: Any = self.choose_agent(user, category, name)
            chosen = await chosen if inspect.isawaitable(chosen) else chosen
        if not isinstance(chosen, str) or chosen not in self.agents:
            raise ConfigurationError(f"Project(choose_agent=…) returned {chosen!r:.100}, which names no agent")
        if name not in (None, chosen):
            raise Forbidden("You may not use this agent.")
        return chosen

    def read_settings(self, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment; what it leaves out is as the project says."""
        return Settings.from_env(env, defaults=self.settings)
