"""The product under fault: real processes, with a proxy before each server that they call."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pymongo import MongoClient
from pymongo.database import Database

from local.aws import Aws
from local.emulator import Emulator
from local.emulator.environment import State
from local.emulator.launch import NewLauncher
from local.model import OfflineModel
from local.mongod import Mongod
from local.ports import LOOPBACK
from local.stack import StackOptions, local_stack
from local.template import Function, Template
from omniagent.aio import cancelled
from tests.faults.client import Client, Json, Stream, a_moment
from tests.faults.truth import Conversation, check_closed, examine, read_log
from tests.fixtures.endings import ended_in_time
from tests.fixtures.functions import functions_with
from tests.fixtures.proxy import Proxy, proxy_to
from tests.fixtures.wire_formats import HttpWire, MongoWire
from tests.fixtures.zygote import forks
from tests.runner.sessions import until

TICK_SECONDS = 0.1
LEASE_SECONDS = 2.5
SETTINGS = {
    "TICK_SECONDS": str(TICK_SECONDS),
    "LEASE_SECONDS": str(LEASE_SECONDS),
    "MONGODB_TIMEOUT_SECONDS": "5",
    "MODEL_TIMEOUT_SECONDS": "20",
    "MAX_RUNNING_TURNS_PER_USER": "2",
}
SWEEP = b'{"kind": "sweep"}'
SWEEP_SECONDS = 1.0
"""As deployed, the schedule is once a minute."""
FUNCTIONS_THAT_FINISH = ("chat", "sessions", "run")
"""With these somebody looks after turns."""
TALKING = '[slow:20][echo:Let me see what I can do for you.][tool:charge {"order": "17"}]'
AGENT = Path(__file__).parent / "function" / "agent.py"
SPARE_PROCESSES = 4


@dataclass
class Servers:
    """What the functions call. They only know the proxies."""

    mongod: Mongod
    aws: Aws
    model: OfflineModel
    storage: Proxy
    table: Proxy
    answers: Proxy
    code: Path
    """The functions with the agent of this suite."""
    ledger: Path
    """Where the agent's `charge` writes down each run."""

    starter: ThreadPoolExecutor
    """A server lives as long as the thread that started it."""

    async def restart_mongod(self) -> None:
        """Kill MongoDB and start it again, beside everything that goes on."""
        self.mongod.kill()
        await asyncio.get_running_loop().run_in_executor(self.starter, self.mongod.start)


@asynccontextmanager
async def open_servers(folder: Path) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        starter = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        mongod = stack.enter_context(Mongod())
        aws = stack.enter_context(Aws())
        model = stack.enter_context(OfflineModel())
        direct = f"mongodb://{LOOPBACK}:{mongod.port}/?directConnection=true"
        storage = await stack.enter_async_context(proxy_to(direct, MongoWire(), keeps_journal=True))
        table = await stack.enter_async_context(proxy_to(aws.endpoint, HttpWire(), keeps_journal=True))
        answers = await stack.enter_async_context(proxy_to(model.base_url, HttpWire()))
        code = functions_with(folder / "functions", agent=AGENT)
        ledger = folder / "ledger"
        ledger.touch()
        yield Servers(mongod, aws, model, storage, table, answers, code, ledger, starter)


class Log:
    """What the functions print."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        """With the time at which each was printed."""
        self._printed = asyncio.Event()

    def add(self, function: str, line: str) -> None:
        self.lines.append((time.monotonic(), f"{function}: {line}"))
        self._printed.set()

    def count(self, *texts: str) -> int:
        """Return how many lines have all of these in them."""
        return sum(all(text in line for text in texts) for _, line in self.lines)

    async def has(self, *texts: str) -> None:
        """Wait for a line with all of these in it."""
        while not self.count(*texts):
            self._printed.clear()
            await self._printed.wait()


@dataclass
class House:
    """The running functions, and the hands that break them."""

    servers: Servers
    emulator: Emulator
    database: Database[Json]
    http: httpx.AsyncClient
    table: str
    log: Log
    has_run: bool
    """The run function sweeps."""
    _warming: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def storage(self) -> Proxy:
        return self.servers.storage

    @property
    def registry(self) -> Proxy:
        return self.servers.table

    def client(self, user: str | None = None) -> Client:
        """A client with a session of its own."""
        urls = {name: self.emulator.url_of(name) for name in ("chat", "sessions")}
        return Client(self.http, user=user, **urls)

    async def at_rest(self, client: Client) -> None:
        """Wait until no process has a request of the client's."""

        async def is_at_rest() -> bool:
            return not any(client.session.encode() in each.event for each in self.emulator.running("chat"))

        await until(is_at_rest)

    def answering(self, client: Client) -> int:
        """The one process that has a request of the client's and has not answered it."""
        answered = {stream.headers.get("x-amzn-requestid") for stream in client.streams if stream.ended}
        (process,) = (
            process
            for process in self.emulator.running("chat")
            if client.session.encode() in process.event and process.request_id not in answered
        )
        return process.pid

    def kill(self, client: Client) -> float:
        """Kill the process that answers a client, and return when that was.

        A replacement starts beside the test, where there are few to spare.
        """
        self.emulator.kill(self.answering(client))
        idle = [process for process in self.emulator.processes("chat") if process.state is State.IDLE]
        if len(idle) < SPARE_PROCESSES:
            task = asyncio.create_task(self._wait_for_work(len(idle) + 1))
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)
        return time.monotonic()

    async def killed(
        self, client: Client, text: str, happened: Callable[[Stream], bool], message_id: str | None = None
    ) -> tuple[Stream, float]:
        """Ask, and kill the process once this was seen of the answer. Returns what was seen, and when that was."""
        exchange = client.ask(text, message_id)
        await exchange.until(happened)
        at = self.kill(client)
        return await exchange.end(), at

    async def finished(self, client: Client) -> Json:
        """Wait for the session's first answer, without asking anybody for it."""
        while not (answers := self.read(client).answers):
            await a_moment()
        return answers[0]

    async def warm_up(self) -> None:
        """See to it that some processes wait for work, with all their connections made."""
        if self.has_run:
            await self.emulator.invoke("run", SWEEP)
        await self._wait_for_work(SPARE_PROCESSES)

    async def _wait_for_work(self, processes: int) -> None:
        idlers = [self.client().resume() for _ in range(processes)]
        await asyncio.gather(*(idler.end() for idler in idlers))

    async def close(self) -> None:
        await ended_in_time("spare processes", asyncio.gather(*self._warming))

    def read(self, client: Client) -> Conversation:
        return Conversation.read(self.database, client)

    def check(self, client: Client) -> Conversation:
        """Hold the client's session, which is at rest, against P1 to P5."""
        conversation = self.read(client)
        findings = examine(conversation, client.streams)
        assert not findings, str(findings)
        return conversation

    def check_closed(self, client: Client, stream: Stream) -> Json:
        """Hold the answer of a turn that was killed and closed against what the client had got of it."""
        conversation = self.read(client)
        log = read_log(self.servers.aws.dynamodb, self.table, conversation.key, stream.answer_id)
        answer = conversation.by_node[stream.answer_id]
        check_closed(answer, stream, log, self.registry.journal)
        return answer

    async def logged(self, text: str, stream: Stream) -> None:
        """Wait until the process that sends a stream has logged this."""
        await self.log.has(text, stream.headers["x-amzn-requestid"])


@asynccontextmanager
async def open_house(
    servers: Servers,
    settings: Mapping[str, str] | None = None,
    *,
    functions: tuple[str, ...] = ("chat", "sessions"),
    run_timeout: int | None = None,
    sweep_seconds: float = SWEEP_SECONDS,
    redelivery_seconds: int | None = None,
    launcher: NewLauncher | None = None,
    **changes: Any,
) -> AsyncIterator[House]:
    """Run the functions on the servers, with these settings. `changes` are of the chat function.

    `redelivery_seconds` is when a queue's message comes again whose process died, instead of after the queue's own
    time of 16 minutes. The run function sweeps once a second.
    """
    environment = {**SETTINGS, "FAULT_LEDGER": str(servers.ledger), **(settings or {})}

    def change(function: Function) -> Function:
        own = changes if function.short_name == "chat" else {}
        if run_timeout is not None and function.short_name == "run":
            own = {"timeout": run_timeout}
        return function.having(environment, code=servers.code, **own)

    log = Log()
    has_queues = bool({"summary", "run"} & {*functions})
    queues = {"redelivery_seconds": redelivery_seconds} if has_queues else {"sqs": None}
    options = StackOptions(
        mongodb_uri=servers.storage.url,
        aws=servers.aws,
        openai_api_key="offline",
        openai_base_url=servers.answers.url,
        auth="none",
        functions=functions,
        environment={"AWS_ENDPOINT_URL": servers.table.url, "OMNIAGENT_LOCAL": "1"},
        change=change,
        emulator={"launcher": launcher or forks(), "on_line": log.add, **queues},
    )
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(local_stack(options))
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False)
        )
        mongo = stack.enter_context(MongoClient[Json](servers.mongod.uri, tz_aware=True))
        (table,) = Template().tables.values()
        house = House(servers, running.emulator, mongo["omniagent"], http, table.name, log, "run" in functions)
        stack.push_async_callback(house.close)
        if house.has_run:
            sweeping = asyncio.create_task(_sweep(house, sweep_seconds))
            stack.push_async_callback(cancelled, sweeping)
        yield house


async def _sweep(house: House, seconds: float) -> None:
    """Do what the schedule does."""
    while True:
        await asyncio.sleep(seconds)
        await house.emulator.invoke("run", SWEEP)
