"""`Project`: the one object a team configures. Every function imports it, so what it names works in all of them.

project = Project(agent=agent, documents=DocumentModels(session=Ticket), providers={"acme": acme})
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic

from omniagent.ai.agent import Agent
from omniagent.ai.context import check_async
from omniagent.ai.providers import LLMProvider, ProviderFactory, check_registration
from omniagent.ai.schema import Output_co
from omniagent.ai.signatures import check_rule
from omniagent.declared import check, check_fields
from omniagent.errors import ConfigurationError
from omniagent.settings import Budget, Settings, checked_defaults

if TYPE_CHECKING:  # Beanie takes a quarter of a cold start: only a project with documents of its own imports it here
    from omniagent.ai.approvals import ApproverRule
    from omniagent.persistence.contracts import DocumentModels


def _check_documents(where: str, documents: object) -> None:
    from omniagent.persistence.contracts import DocumentModels  # whoever passes one has imported it already

    if not isinstance(documents, DocumentModels):
        raise ConfigurationError(f"{where} must be DocumentModels(…), not {documents!r:.100}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Project(Generic[Output_co]):
    """The configuration of a deployment. A mistake raises `ConfigurationError` when it is created."""

    agent: Agent[Any, Output_co]
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
        checked_defaults(dict(self.settings))
        for name, provider in self.providers.items():
            check_registration(f"Project: providers: {name!r}", provider)

    def read_settings(self, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment; what it leaves out is as the project says."""
        return Settings.from_env(env, defaults=self.settings)
