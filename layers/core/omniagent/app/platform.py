"""`Platform`: what an application runs on. This one is a server with a MongoDB; `on_lambda` has that of AWS."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from omniagent.ai.providers.llm_provider import Purpose
from omniagent.budget.spending import SpendingCounter
from omniagent.errors import BudgetExceeded, ConfigurationError, TooManyRequests
from omniagent.messages import Usage
from omniagent.settings import Settings
from omniagent.turns.registry import TurnRegistry

if TYPE_CHECKING:
    from omniagent.persistence.store import ConversationStore

SecretName = Literal["mongodb", "openai", "anthropic", "webhook"]
SECRET_SETTINGS: Final[Mapping[SecretName, str]] = {
    "mongodb": "mongodb_uri",
    "openai": "openai_api_key",
    "anthropic": "anthropic_api_key",
    "webhook": "webhook_secret",
}
"""The settings that hold the secrets where no store does."""


class Queue(Protocol):
    """Delivers JSON messages to the process that does the jobs."""

    name: str
    """The name that a delivered message says it came from."""

    async def send(self, message: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Send a message, to be delivered after the delay. Raises `QueueUnavailable`."""

    async def aclose(self) -> None:
        """Close its connections. The next send opens new ones."""


class Platform:
    """Servers that share a MongoDB: running turns are kept there, secrets are settings, and there are no queues.

    Another platform overrides what it does differently.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.run_queue: Queue | None = None
        self.summary_queue: Queue | None = None

    def registry(self, store: "ConversationStore | None") -> TurnRegistry:
        """Return the registry of running turns, for as long as this store is open."""
        from omniagent.persistence.mongo_registry import MongoTurnRegistry  # no function needs it

        return MongoTurnRegistry(_opened(store), kept_days=self.settings.journal_days)

    def counter(self, store: "ConversationStore | None") -> SpendingCounter:
        """Return what counts the users' spending, in the same way."""
        from omniagent.persistence.mongo_registry import MongoCounter

        return MongoCounter(_opened(store))

    def has_changing_secret(self, name: SecretName) -> bool:  # noqa: ARG002 - for other platforms
        """Whether a secret may be rotated while the process runs."""
        return False

    async def secret(self, name: SecretName, *, refresh: bool = False) -> str:  # noqa: ARG002 - for other platforms
        """Return a secret; with `refresh`, its current value: the one read before was refused."""
        value: str = getattr(self.settings, SECRET_SETTINGS[name])
        return value

    def load(self) -> None:
        """Import what is used after the first byte, so that restored snapshots have it loaded."""

    def emit(self, counts: Mapping[str, int], milliseconds: Mapping[str, int] | None = None) -> None:
        """Record metrics for the operator. The template's alarms and dashboard are built on their names."""

    def emit_model_call(self, purpose: Purpose, usage: Usage) -> None:
        """Count the tokens of a call for a summary or a name. Those of an answer are counted with its turn."""
        name = purpose.capitalize()
        self.emit({f"{name}InputTokens": usage.input_tokens, f"{name}OutputTokens": usage.output_tokens})

    def emit_refusal(self, refusal: BudgetExceeded) -> None:
        """Count a request or a model call that a budget has refused."""
        self.emit({"RateRefusals" if isinstance(refusal, TooManyRequests) else "BudgetRefusals": 1})

    async def aclose(self) -> None:
        """Close the connections. They are opened again when they are used."""
        for queue in (self.run_queue, self.summary_queue):
            if queue is not None:
                await queue.aclose()


def _opened(store: "ConversationStore | None") -> "ConversationStore":
    if store is None:
        raise ConfigurationError("turns and spending are kept in the store: call `await application.store()` first")
    return store
