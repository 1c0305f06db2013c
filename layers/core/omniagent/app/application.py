"""`Application`: a project at run time, with the connections of one process.

Each part is created on first use, so a cold start pays only for what the function needs. If that fails, the next
request tries again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from omniagent import errors
from omniagent.ai.providers import KEYED_VENDORS, ProviderPool
from omniagent.app.platform import Platform
from omniagent.budget.spending import Meter, SpendingCounter
from omniagent.persistence.adapter import MongoBackendAdapter
from omniagent.persistence.catalog import Catalog
from omniagent.persistence.documents import DocumentModels
from omniagent.persistence.driver_errors import is_refused_login
from omniagent.persistence.mongo_session import MongoSessionManager
from omniagent.persistence.store import ConversationStore
from omniagent.project import Project
from omniagent.session.ids import new_id, user_id_of
from omniagent.settings import Budget, Settings
from omniagent.tls import check_url, is_laptop, needs_tls, require_mongodb_tls
from omniagent.tracing import bind_context, trace_job
from omniagent.tracing.redaction import hide
from omniagent.turns.registry import TurnRegistry

if TYPE_CHECKING:
    from omniagent.ai.operator import TurnOperator
    from omniagent.ai.result import RunResult
    from omniagent.ai.runner import RunnerOptions
    from omniagent.session.live import SessionMessage
    from omniagent.session.manager import SessionAddress

logger = logging.getLogger(__name__)

SEARCH_GRACE_SECONDS = 10.0
"""How long the search of a process that died keeps its user from searching again."""
NOT_OUR_FAULT: Final = (errors.RequestError, errors.ModelRejected, errors.TurnLost)
"""How a user can end a turn: a spent budget, a message that the model's API refuses, a deleted session. A turn that
another process took over is counted there. No user may page the operator."""


class Application:
    """A project at run time: the runners of its agent and the connections of one process. Bound to one event loop.

    Without a `platform`, it runs on servers that share the MongoDB of the project's settings.
    """

    def __init__(self, project: Project, platform: Platform | None = None, *, local: bool | None = None) -> None:
        if not isinstance(project, Project):
            raise errors.ConfigurationError(f"Application(project) must be a Project(agent=…), not {project!r:.100}")
        self.project = project
        self.platform = platform or Platform(project.read_settings())
        hide(self.settings.openai_api_key)
        hide(self.settings.anthropic_api_key)
        check_url("OPENAI_BASE_URL", self.settings.openai_base_url)
        check_url("ANTHROPIC_BASE_URL", self.settings.anthropic_base_url)
        if self.settings.webhook_url:
            self._check_webhook()
        self.local = is_laptop() if local is None else local
        self._adapter: MongoBackendAdapter | None = None
        self._store: ConversationStore | None = None
        self._opening = asyncio.Lock()

    @property
    def settings(self) -> Settings:
        return self.platform.settings

    @cached_property
    def providers(self) -> ProviderPool:
        platform = self.platform
        return ProviderPool.from_settings(
            self.settings,
            self.project.providers,
            keys={
                vendor: (partial(platform.secret, vendor), partial(platform.secret, vendor, refresh=True))
                for vendor in KEYED_VENDORS
                if platform.has_changing_secret(vendor)
            },
            verbose_errors=self.local,
            on_refused_field=lambda _: self.platform.emit({"RefusedFields": 1}),  # the log names it
        )

    @cached_property
    def registry(self) -> TurnRegistry:
        """The running turns."""
        return self.platform.registry(self._store)

    @cached_property
    def counter(self) -> SpendingCounter:
        """The users' spending. Written only if a budget limits something."""
        return self.platform.counter(self._store)

    @cached_property
    def _options(self) -> "RunnerOptions":
        """What all runners share, for as long as the store is open."""
        from omniagent.ai.runner import RunnerOptions

        return RunnerOptions(
            project=self.project,
            providers=self.providers,
            registry=self.registry,
            counter=self.counter,
        )

    @asynccontextmanager
    async def serving(self, *signals: int) -> AsyncIterator[None]:
        """Run in a server: connect, and finish turns whose process died for as long as the block lasts.

        On these signals, such as `signal.SIGTERM`, the running turns end in order: what was streamed is stored.
        """
        from omniagent.app.sweep import Sweeper  # the functions have a schedule

        try:
            store = await self.store()
            if signals and self._adapter is not None:
                self._adapter.end_turns_on(*signals)
            async with Sweeper(store, self.runner_at, self.settings).running():
                yield
        finally:
            await self.close()

    async def store(self) -> ConversationStore:
        """Return the store. If MongoDB refuses the login, retry once with the secret's current value."""
        if self._store is not None:
            return self._store
        async with self._opening:
            try:
                return await self._open()
            except errors.StorageError as exc:
                if await self._login_changed(exc):
                    return await self._open()
                if is_refused_login(exc):
                    raise errors.ConfigurationError(f"MongoDB refuses the login of MONGODB_URI: {exc}") from exc
                raise

    async def build_indexes(self) -> None:
        """Build the indexes that are missing, however long it takes. Not within a request."""
        await self.store()
        if self._adapter is not None:
            await self._adapter.build_indexes()

    async def catalog(self) -> Catalog:
        return Catalog(await self.store())

    async def count_request(self, user: str, category: str | None) -> None:
        """Count a request that calls no model, but costs the database. Raises `TooManyRequests`."""
        budget = self.project.budgets.get(category or "", self.settings.budget)
        if budget.requests_per_minute:
            of_requests = Budget(requests_per_minute=budget.requests_per_minute)
            await Meter(self.counter, user_id_of(user), of_requests, self.platform.emit_refusal).admit()

    @asynccontextmanager
    async def one_search(self, user: str) -> AsyncIterator[None]:
        """Let one search of a user run at a time, over all processes. Raises `TooManyReaders`."""
        searcher, search = f"search#{user_id_of(user)}", new_id()
        try:
            if await self.registry.count_reader(searcher, search, SEARCH_GRACE_SECONDS) > 1:
                raise errors.TooManyReaders("Another search of yours is still running.", retry_after=1.0)
            yield
        finally:
            with suppress(errors.RegistryUnavailable):  # it counts until it expires
                await self.registry.count_reader(searcher, search, 0)

    async def session(self, user: str, session_id: str | None, *, category: str | None = None) -> MongoSessionManager:
        """Return one session of a user."""
        return MongoSessionManager(await self.store(), user, session_id, settings=self.settings, category=category)

    async def runner(self, user: str, session_id: str | None, *, category: str | None = None) -> "TurnOperator":
        """Return the runner of one session with the project's agent."""
        return await self._runner_of(self.session(user, session_id, category=category))

    async def runner_of_key(self, key: str) -> "TurnOperator":
        """Return the runner for a job that knows only the session's key. Raises `NotFound`."""
        return await self._runner_of(MongoSessionManager.of_key(await self.store(), key, settings=self.settings))

    async def runner_of_request(self, request_id: str) -> "tuple[TurnOperator, str]":
        """Return the runner of the session that a request belongs to, and the id of the answer that contains it."""
        key, message_id = await (await self.catalog()).find_request(request_id)
        return await self.runner_of_key(key), message_id

    async def _runner_of(self, opening: Awaitable[MongoSessionManager]) -> "TurnOperator":
        """Open a session and return its runner, with the hooks, budget and approvers of this deployment."""
        from omniagent.ai.operator import OwnOperator
        from omniagent.turns.setup import RuntimeHooks

        session = await opening
        hooks = RuntimeHooks(
            on_work=partial(self.queue_run, session.key) if self.platform.run_queue else None,
            on_end=partial(self._turn_ended, session.key),
            on_model_call=self.platform.emit_model_call,
            on_refusal=self.platform.emit_refusal,
            leaves_summaries=self.platform.summary_queue is not None,
        )
        return OwnOperator(self._options, session, hooks)

    async def runner_at(self, address: "SessionAddress") -> "TurnOperator":
        """Return the runner of the session with this address."""
        return await self.runner(address.user, address.session_id, category=address.category)

    async def queue_run(self, key: str) -> None:
        """Queue a session that has work: a turn that was handed over or is dead, or messages in line."""
        await self.queue_job({"kind": "run", "session_id": key})

    async def queue_job(self, job: dict[str, Any], *, delay_seconds: float = 0) -> None:
        """Queue a job of the run function, which its `kind` names. Raises `NoRunQueue`."""
        if self.platform.run_queue is None:
            raise errors.NoRunQueue
        await self.platform.run_queue.send(job, delay_seconds=delay_seconds)

    async def queue_summary(self, key: str, *, rebuild: bool = False) -> bool:
        """Queue an update of a session's summary, or a rebuild, for the summary function.

        Returns False if such a job is queued already.
        """
        catalog = await self.catalog()
        try:
            is_new = await catalog.note_summary_queued(key, rebuild=rebuild)
            if is_new:
                await self._send_summary(key, rebuild=rebuild)
        except BaseException:  # the note may be stored, although that failed
            await catalog.note_summary_done(key, rebuild=rebuild)
            raise
        return is_new

    async def end_summary(self, key: str, *, rebuild: bool, is_done: bool) -> None:
        """Record that a summary job is done, or queue the rest of it."""
        if is_done:
            await (await self.catalog()).note_summary_done(key, rebuild=rebuild)
        else:
            await self._send_summary(key, rebuild=rebuild)

    async def announce(self, key: str, answer: "SessionMessage") -> None:
        """Queue the event of a turn's end for the operator's webhook, then record it.

        If that fails, it may be sent twice, with the same id.
        """
        from omniagent.app.webhook import TurnEvent

        event = TurnEvent.of(key, answer)
        await self.queue_job({"kind": "webhook", "session_id": key, "event": event.model_dump(mode="json")})
        await (await self.catalog()).note_announced(key, answer.id, event.id)

    @asynccontextmanager
    async def job(self, key: str, traceparent: str) -> AsyncIterator[None]:
        """Do a job inside: with the ids of its session in logs and traces, and `recover` if it fails."""
        user_id, _, session_id = key.partition(":")
        with bind_context(session_id=session_id, user_id=user_id), trace_job("job", traceparent):
            try:
                yield
            except errors.OmniAgentError as exc:
                await self.recover(exc)
                raise

    async def recover(self, error: BaseException) -> None:
        """After a failed request: if MongoDB refused the login and the secret has changed, drop the connection."""
        async with self._opening:
            await self._login_changed(error)

    async def close(self) -> None:
        """End the running turns and store their answers, then close what they use."""
        async with self._opening:
            await self._close_store()
        for agent in self.project.all_agents.values():
            await agent.aclose()
        await self.providers.aclose()
        await self.platform.aclose()

    def load(self) -> None:
        """Import what a turn needs but a cold start skips, so that restored snapshots have it loaded."""
        import omniagent.ai.operator  # noqa: F401 - imported to be loaded

        self.platform.load()
        for agent in self.project.all_agents.values():
            self.providers.get(agent.model or self.settings.model)

    async def _turn_ended(self, key: str, result: "RunResult") -> None:
        answer = result.message
        self.platform.emit(*turn_metrics(result))
        logger.info(
            "turn ended",
            extra={
                "status": result.status,
                "turn_number": answer.turn_number,
                "duration_ms": answer.metadata["durationMs"],
                "total_tokens": answer.usage.total_tokens,
                "stored": result.stored,
            },
        )
        if result.summary_missed and self.platform.summary_queue:
            await self.queue_summary(key)
        if self.settings.webhook_url and result.stored:
            await self.announce(key, answer)

    async def _send_summary(self, key: str, *, rebuild: bool) -> None:
        if self.platform.summary_queue is None:
            raise errors.NoQueue
        await self.platform.summary_queue.send({"session_id": key, "rebuild": rebuild})

    def _check_webhook(self) -> None:
        hide(self.settings.webhook_secret)
        check_url("WEBHOOK_URL", self.settings.webhook_url)
        if not self.settings.webhook_secret:
            raise errors.ConfigurationError("WEBHOOK_URL needs a secret to sign with: set WEBHOOK_SECRET")
        if not self.platform.run_queue:
            raise errors.ConfigurationError(
                "WEBHOOK_URL needs the run function, which delivers the events: set RUN_QUEUE_URL"
            )

    async def _open(self) -> ConversationStore:
        if self._adapter is None:
            settings = self.settings
            uri = await self.platform.secret("mongodb")
            if needs_tls():
                require_mongodb_tls(uri)
            self._adapter = MongoBackendAdapter(
                uri,
                settings.mongodb_database,
                documents=self.project.documents or DocumentModels(),
                timeout_seconds=settings.mongodb_timeout_seconds,
                pool_size=settings.mongodb_pool_size,
            )
        self._store = await self._adapter.initialize()
        return self._store

    async def _login_changed(self, error: BaseException) -> bool:
        if not is_refused_login(error):
            return False
        before = await self.platform.secret("mongodb")
        if await self.platform.secret("mongodb", refresh=True) == before:
            return False
        await self._close_store()
        return True

    async def _close_store(self) -> None:
        adapter, self._adapter, self._store = self._adapter, None, None
        if adapter is not None:
            await adapter.shutdown()  # ends the running turns, which need the registry
        self.__dict__.pop("_options", None)
        for part in ("registry", "counter"):  # both may be kept in the store: the next one has its own
            if part in self.__dict__:
                await self.__dict__.pop(part).aclose()


def turn_metrics(result: "RunResult") -> tuple[dict[str, int], dict[str, int]]:
    """Return what is counted of a turn that has ended, and its milliseconds."""
    metadata, usage, before = result.message.metadata, result.message.usage, result.usage_before
    is_failed = result.status == "failed" or not result.stored
    counts = {
        "Turns": int(not result.is_continued),
        "InputTokens": usage.input_tokens - before.input_tokens,
        "OutputTokens": usage.output_tokens - before.output_tokens,
        "CachedInputTokens": usage.cached_input_tokens - before.cached_input_tokens,
        "CacheWriteTokens": usage.cache_write_tokens - before.cache_write_tokens,
        "ToolCalls": result.tool_calls,
        "ToolErrors": result.tool_errors,
        "WaitingTurns": int(result.status == "waiting"),
        "CancelledTurns": int(result.status == "cancelled"),
        "FailedTurns": int(is_failed and not isinstance(result.error, NOT_OUR_FAULT)),
        "RejectedTurns": int(isinstance(result.error, errors.ModelRejected)),
    }
    times = {"TurnDuration": "durationMs", "TimeToFirstToken": "firstTokenMs"}
    if result.status == "waiting":
        del times["TurnDuration"]  # reported when the turn ends, without its waiting time
    if result.is_continued:
        del times["TimeToFirstToken"]
    return counts, {name: metadata[key] for name, key in times.items() if key in metadata}
