"""What a function makes once per process and reuses in every invocation.

Everything is opened when it is first asked for: a function pays at its cold start only for what it uses. An opening
that failed is tried again by the next invocation.
"""

import asyncio
import os
from functools import cache, cached_property

from omniagent.ai.providers import LLMProvider, get_llm_provider
from omniagent.aws.queues import SummaryQueue
from omniagent.aws.secrets import SecretStore
from omniagent.aws.turn_table import DynamoRegistry
from omniagent.errors import StorageError
from omniagent.http.auth import Authenticator
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.connection import is_refused_login
from omniagent.persistence.contracts import DocumentModels
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.settings import Settings
from omniagent.tracing import configure_tracing
from omniagent.tracing.logs import setup_logging
from omniagent.tracing.redaction import hide
from omniagent.turns.lease import MemoryRegistry, TurnRegistry

MONGODB_KEYS = ("MONGODB_URI", "mongodb_uri", "uri")
OPENAI_KEYS = ("OPENAI_API_KEY", "openai_api_key", "api_key")


class Services:
    """The connections of one process. They belong to one event loop."""

    def __init__(
        self, settings: Settings, *, models: DocumentModels = DocumentModels(), local: bool | None = None
    ) -> None:
        hide(settings.openai_api_key)
        self.settings = settings
        self.secrets = SecretStore()
        self._models = models
        self._local = os.environ.get("OMNIAGENT_LOCAL") == "1" if local is None else local
        self._adapter: MongoBackendAdapter | None = None
        self._opening = asyncio.Lock()
        self._providers: dict[str, LLMProvider] = {}

    @cached_property
    def authenticator(self) -> Authenticator:
        return Authenticator(self.settings, local=self._local)

    @cached_property
    def registry(self) -> TurnRegistry:
        settings = self.settings
        if not settings.turns_table:
            return MemoryRegistry(lease_seconds=settings.lease_seconds)
        return DynamoRegistry(settings.turns_table, lease_seconds=settings.lease_seconds)

    @cached_property
    def summary_queue(self) -> SummaryQueue:
        return SummaryQueue(self.settings.summary_queue_url)

    async def store(self) -> ConversationStore:
        """Return the conversations. A login that is refused is tried once more with the secret as it is now."""
        async with self._opening:
            try:
                return await self._open()
            except StorageError as exc:
                if not await self._login_changed(exc):
                    raise
                return await self._open()

    async def catalog(self) -> Catalog:
        return Catalog(await self.store())

    async def session(self, user: str, session_id: str | None, *, category: str | None = None) -> MongoSessionManager:
        """Return one session of a user."""
        return MongoSessionManager(await self.store(), user, session_id, settings=self.settings, category=category)

    def provider(self, model: str | None = None) -> LLMProvider:
        """Return the provider of a model, of OMNIAGENT_MODEL when none is named."""
        name = model or self.settings.model
        if name not in self._providers:
            self._providers[name] = self._make_provider(name)
        return self._providers[name]

    async def queue_summary(self, key: str, *, rebuild: bool = False) -> None:
        """Ask the summary function to bring a session's summary up to date, or to write it anew."""
        await self.summary_queue.send(key, rebuild=rebuild)

    async def recover(self, error: BaseException) -> None:
        """After a failed request: when MongoDB refused the login and the secret has changed, connect anew next time."""
        async with self._opening:
            await self._login_changed(error)

    async def close(self) -> None:
        providers, self._providers = self._providers, {}
        for provider in providers.values():
            await provider.aclose()
        await self.registry.aclose()
        await self.summary_queue.close()
        async with self._opening:
            await self._close_store()

    async def _open(self) -> ConversationStore:
        if self._adapter is None:
            settings = self.settings
            uri = settings.mongodb_uri
            if settings.mongodb_secret_arn:
                uri = await self.secrets.get(settings.mongodb_secret_arn, *MONGODB_KEYS)
            self._adapter = MongoBackendAdapter(
                uri, settings.mongodb_database, timeout_seconds=settings.mongodb_timeout_seconds
            )
        return await self._adapter.initialize(self._models)

    async def _login_changed(self, error: BaseException) -> bool:
        arn = self.settings.mongodb_secret_arn
        if not arn or not is_refused_login(error):
            return False
        before = await self.secrets.get(arn, *MONGODB_KEYS)
        if await self.secrets.refresh(arn, *MONGODB_KEYS) == before:
            return False
        await self._close_store()
        return True

    async def _close_store(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            await adapter.shutdown()

    def _make_provider(self, model: str) -> LLMProvider:
        settings = self.settings
        keys: dict[str, object] = {"api_key": settings.openai_api_key or None}
        if settings.openai_secret_arn:
            keys = {"api_key": self._openai_key, "refresh_key": self._refreshed_openai_key}
        return get_llm_provider(
            model,
            api=settings.openai_api,
            base_url=settings.openai_base_url or None,
            timeout_seconds=settings.model_timeout_seconds,
            max_retries=settings.model_max_retries,
            **keys,
        )

    async def _openai_key(self) -> str:
        return await self.secrets.get(self.settings.openai_secret_arn, *OPENAI_KEYS)

    async def _refreshed_openai_key(self) -> str:
        return await self.secrets.refresh(self.settings.openai_secret_arn, *OPENAI_KEYS)


@cache
def get_services() -> Services:
    """Return the process's services, with logs and traces set up by the environment."""
    settings = Settings.from_env()
    service = os.environ.get("POWERTOOLS_SERVICE_NAME", "omniagent")
    setup_logging(settings.log_level, service)
    if settings.otel_exporter_otlp_endpoint:
        configure_tracing(
            settings.otel_exporter_otlp_endpoint,
            service_name=service,
            headers=settings.otel_exporter_otlp_headers,
            capture_content=settings.trace_content,
        )
    return Services(settings)
