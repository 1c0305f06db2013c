"""`Project`: the one object a team configures. Every function imports it, so what it names works in all of them.

project = Project(agent=agent, documents=DocumentModels(session=Ticket), providers={"acme": acme})
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from omniagent.ai.agent import Agent
from omniagent.ai.context import check_async
from omniagent.ai.providers import LLMProvider, ProviderFactory, check_registration
from omniagent.ai.schema import Output_co
from omniagent.ai.signatures import check_rule
from omniagent.errors import ConfigurationError
from omniagent.settings import Budget, Settings, checked_defaults

if TYPE_CHECKING:  # Beanie takes a quarter of a cold start: only a project with documents of its own imports it here
    from omniagent.ai.approvals import ApproverRule
    from omniagent.persistence.contracts import DocumentModels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Project(Generic[Output_co]):
    """The configuration of a deployment. A mistake raises `ConfigurationError` when it is created."""

    agent: Agent[Any, Output_co]
    documents: "DocumentModels | None" = None
    """Document classes of your own; None takes OmniAgent's."""
    providers: Mapping[str, ProviderFactory | LLMProvider] = field(default_factory=dict)
    """Model providers by the name or the prefix of their models, as factories or as finished providers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of this project by the names of `Settings`. The environment wins over them."""
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    """What users may spend, by their category. Other users have the budget of the settings."""
    on_erase: Callable[[str, str | None], Awaitable[None]] | None = None
    """Deletes what you have stored elsewhere: of a user's session, or of a user with everything (None)."""
    approvers: "ApproverRule | None" = None
    """Says who may approve what tools ask for: a function of the `Approver` and the `ToolRequest`, async or not.

    None: whoever asked the question, and nobody else.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.agent, Agent):
            raise ConfigurationError(f"Project(agent=…) must be an Agent, not {_shown(self.agent)}")
        if self.documents is not None:
            _check_documents(self.documents)
        for name, provider in _entries("providers", self.providers):
            check_registration(f"Project(providers=…): {name!r}", provider)
        checked_defaults(dict(_entries("settings", self.settings)))
        for category, budget in _entries("budgets", self.budgets):
            if not isinstance(budget, Budget):
                raise ConfigurationError(f"Project(budgets=…): {category!r} must be a Budget(…), not {_shown(budget)}")
        check_async("Project(on_erase=…)", self.on_erase, "user", "session_id")
        if self.approvers is not None:
            check_rule("Project(approvers=…)", self.approvers, "approver", "request")

    def read_settings(self, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment; what it leaves out is as the project says."""
        return Settings.from_env(env, defaults=self.settings)


def _entries(field_name: str, value: object) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ConfigurationError(f"Project({field_name}=…) must be a dict with names as its keys, not {_shown(value)}")
    return list(value.items())


def _check_documents(documents: object) -> None:
    from omniagent.persistence.contracts import DocumentModels  # whoever passes one has imported it already

    if not isinstance(documents, DocumentModels):
        raise ConfigurationError(f"Project(documents=…) must be DocumentModels(…), not {_shown(documents)}")


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{value!r:.100}"
