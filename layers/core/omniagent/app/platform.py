"""`Platform`: what an application runs on. This one is a server with a MongoDB; `on_lambda` has that of AWS."""

from typing import TYPE_CHECKING, Literal

from omniagent.ai.providers.llm_provider import Purpose
from omniagent.ai.result import RunResult
from omniagent.app.queues import RunQueue, SummaryQueue
from omniagent.budget.spending import SpendingCounter
from omniagent.errors import BudgetExceeded, ConfigurationError
from omniagent.messages import Usage
from omniagent.settings import Settings
from omniagent.turns.registry import TurnRegistry

if TYPE_CHECKING:
    from omniagent.persistence.store import ConversationStore

SecretName = Literal["mongodb", "openai", "anthropic", "webhook"]


class Platform:
    """Servers that share a MongoDB: running turns are kept there, secrets are settings, and there are no queues.

    Another platform overrides what it does differently.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_queue = RunQueue()
        self.summary_queue = SummaryQueue()

    def registry(self, store: "ConversationStore | None") -> TurnRegistry:
        """Return the registry of running turns, for as long as this store is open."""
        from omniagent.persistence.mongo_registry import MongoTurnRegistry  # no function needs it

        return MongoTurnRegistry(_opened(store), kept_days=self.settings.journal_days)

    def counter(self, store: "ConversationStore | None") -> SpendingCounter:
        """Return what counts the users' spending, in the same way. Called if a budget limits something."""
        from omniagent.persistence.mongo_counter import MongoCounter

        return MongoCounter(_opened(store))

    def has_changing_secret(self, name: SecretName) -> bool:  # noqa: ARG002 - for other platforms
        """Whether a secret may be rotated while the process runs."""
        return False

    async def secret(self, name: SecretName, *, refresh: bool = False) -> str:  # noqa: ARG002 - for other platforms
        """Return a secret; with `refresh`, its current value: the one read before was refused."""
        settings = self.settings
        secrets = {
            "mongodb": settings.mongodb_uri,
            "openai": settings.openai_api_key,
            "anthropic": settings.anthropic_api_key,
            "webhook": settings.webhook_secret,
        }
        return secrets[name]

    def load(self) -> None:
        """Import what is used after the first byte, so that restored snapshots have it loaded."""

    def emit_turn(self, result: RunResult) -> None:
        """Count a turn that has ended."""

    def emit_model_call(self, purpose: Purpose, usage: Usage) -> None:
        """Count the tokens of a call for a summary or a name."""

    def emit_refusal(self, refusal: BudgetExceeded) -> None:
        """Count a request that a budget has refused."""

    def emit_ending_models(self, count: int) -> None:
        """Count the models that end soon. Also 0, which ends an alarm."""

    def emit_refused_field(self, name: str) -> None:
        """Count a field of a request that a model's API refused and that was left out."""

    async def aclose(self) -> None:
        """Close the connections. They are opened again when they are used."""
        for queue in (self.run_queue, self.summary_queue):
            await queue.aclose()


def _opened(store: "ConversationStore | None") -> "ConversationStore":
    if store is None:
        raise ConfigurationError("turns and spending are kept in the store: call `await application.store()` first")
    return store
