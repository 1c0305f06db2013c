"""Figures of warm processes, through the emulator: CPU, first token, history, stop, memory, load."""

import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from statistics import median

from pymongo import MongoClient

from bench.client import Client, percentile
from bench.figure import Figure, compared
from bench.model import CLOCK
from bench.peers import FRAMEWORKS, SCRIPTS, python_of, script_of, sdk_cpu
from bench.servers import served
from bench.system import cpu_seconds, memory_mb
from local.background import BackgroundStack
from omniagent.session.ids import session_key, user_id_of

PEER = "openai-agents"
TICK_SECONDS = 0.5
# A model that thinks for 30 ms, a tenth of what real ones take. The question is stored in that time.
STAMPED = f"[slow:30] [echo:{CLOCK} sent]"
AT_ONCE = f"[echo:{CLOCK} sent]"
AT_ONCE_BOUND_MS = 4.0
MEMORY_BOUND_MB = 64.0


def new_session() -> str:
    return uuid.uuid4().hex


def chat_pid(stack: BackgroundStack) -> int:
    """Return the process id of the only warm chat process."""
    pids = [process.pid for process in stack.stack.emulator.processes("chat")]
    if len(pids) != 1:
        raise RuntimeError(f"expected one chat process, found {pids}")
    return pids[0]


def drain(client: Client, query: str, session: str | None = None) -> int:
    """Send a message, read the answer and return the number of deltas that the model sent."""
    usage = 0
    for arrival in client.ask(query, session or new_session()):
        if arrival.event["type"] == "finish":
            usage = arrival.event["messageMetadata"]["usage"]["outputTokens"]
    return usage


def cpu_per_delta(stack: BackgroundStack, sdk: dict[str, float], deltas: int, rounds: int) -> Figure:
    """CPU of the chat process for a long answer, minus that for a short one, per delta."""
    client = Client(stack.url)
    drain(client, "[burst:1]")
    pid = chat_pid(stack)

    def cost(query: str) -> float:
        before = cpu_seconds(pid)
        for _ in range(rounds):
            drain(client, query)
        return (cpu_seconds(pid) - before) / rounds

    short = cost("[burst:1]")
    long = cost(f"[burst:{deltas}]")
    ours = max(0.0, long - short) / deltas * 1e6
    return compared(
        "CPU per streamed delta, whole path",
        "µs",
        ours,
        sdk,
        target=0.5,
        note="others: the SDK's typed iteration alone",
    )


def paced_cpu_per_delta(
    stack: BackgroundStack, model_url: str, peers: dict[str, float], deltas: int, rounds: int
) -> Figure:
    """CPU of the chat process for an answer at 100 deltas a second, each of which wakes the process.

    Both are measured in turns, because a wake costs whatever the machine's other load makes it cost.
    """
    client = Client(stack.url)
    pid = chat_pid(stack)

    def cost(query: str) -> tuple[float, int]:
        before = cpu_seconds(pid)
        sent = drain(client, query)
        return cpu_seconds(pid) - before, sent

    def own() -> float:
        short, _ = cost("[burst:1]")
        long, sent = cost(f"[slow:10] [long:{deltas}]")
        return max(0.0, long - short) / sent * 1e6

    both = [(own(), float(sdk_cpu(model_url, deltas))) for _ in range(rounds)]
    ours, sdk = (median(values) for values in zip(*both, strict=True))
    return Figure(
        "CPU per delta at 100 deltas a second",
        "µs",
        ours,
        {"openai SDK": sdk, **peers},
        ours / sdk,
        0.8,
        f"medians of {rounds}; the ratio is to the SDK's typed iteration alone, ours the whole path with journal",
    )


def first_token(stack: BackgroundStack, model_url: str, turns: int) -> list[Figure]:
    """Time from the model's sending of the first token to its arrival at the client, with a history of 20 turns."""
    server = (str(python_of(PEER)), str(SCRIPTS / "openai_agents_server.py"))
    with served(*server, model_url, stack.stack.mongodb_uri) as peer_url:
        # Ours is called at its Function URL, because the front of `make run` is not deployed.
        clients = [Client(stack.stack.emulator.url_of("chat")), Client(peer_url)]
        ours, theirs = _delays(clients, STAMPED, turns)
        ours_at_once, theirs_at_once = (percentile(each, 0.5) for each in _delays(clients, AT_ONCE, turns))
    return [
        compared(
            "first token, warm, p50",
            "ms",
            percentile(ours, 0.5),
            {PEER: percentile(theirs, 0.5)},
            target=1.5,
            note="the model sends its first token after 30 ms",
        ),
        Figure(
            "first token of a model that answers at once, p50",
            "ms",
            ours_at_once,
            {PEER: theirs_at_once, "bound": AT_ONCE_BOUND_MS},
            ours_at_once / AT_ONCE_BOUND_MS,
            1.0,
            "`start` waits until the question is stored",
        ),
        Figure("first token, warm, p95", "ms", percentile(ours, 0.95), {PEER: percentile(theirs, 0.95)}),
    ]


def _delays(clients: Sequence[Client], prompt: str, turns: int) -> list[list[float]]:
    """Return the delays of each client's turns. They ask in turns, because the machine's speed changes meanwhile."""
    session = new_session()
    for client in clients:
        for number in range(20):
            drain(client, f"[echo:Turn {number}.]", session)
    rounds = [[first_delay(client, prompt, session) for client in clients] for _ in range(turns)]
    return [list(delays) for delays in zip(*rounds, strict=True)]


def first_delay(client: Client, prompt: str, session: str) -> float:
    """Return the milliseconds that the first token took to arrive."""
    delay = -1.0
    for arrival in client.ask(prompt, session):
        if arrival.event["type"] == "text-delta" and delay < 0:
            sent = int(arrival.event["delta"].split()[0]) / 1e6
            delay = (arrival.at - sent) * 1000
    return delay


def whole_turn(client: Client, session: str) -> float:
    """Return the milliseconds from the request to the first token at the client."""
    started = time.monotonic()
    first = 0.0
    for arrival in client.ask(STAMPED, session):
        if arrival.event["type"] == "text-delta" and not first:
            first = (arrival.at - started) * 1000
    return first


def history_length(stack: BackgroundStack, lengths: list[int], turns: int) -> list[Figure]:
    """Time to the first token with histories of different lengths, and the documents MongoDB returns for a turn."""
    client = Client(stack.url)
    database = MongoClient[dict[str, object]](stack.stack.mongodb_uri)["omniagent"]
    sessions = {length: _with_history(stack, length) for length in lengths}
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(turns):
        for length, session in sessions.items():
            times[length].append(whole_turn(client, session))
    read = {}
    for length, session in sessions.items():
        before = database.command("serverStatus")["metrics"]["document"]["returned"]
        drain(client, STAMPED, session)
        read[length] = database.command("serverStatus")["metrics"]["document"]["returned"] - before
    shortest, longest = lengths[0], lengths[-1]
    middle = {length: percentile(values, 0.5) for length, values in times.items()}
    return [
        Figure(
            f"first token at {longest:,} turns",
            "ms",
            middle[longest],
            {f"{length:,} turns": middle[length] for length in lengths[:-1]},
            middle[longest] / middle[shortest],
            1.1,
        ),
        Figure(
            f"documents returned at {longest:,} turns",
            "",
            read[longest],
            {f"{length:,} turns": read[length] for length in lengths[:-1]},
            read[longest] / read[shortest],
            1.1,
        ),
    ]


def _with_history(stack: BackgroundStack, turns: int) -> str:
    """Create a session with this many turns, copies of a real one. All but the last 9 are summarized."""
    client = Client(stack.url)
    session = new_session()
    drain(client, "[echo:Hello.]", session)
    key = session_key(user_id_of("local:bench"), session)
    database = MongoClient[dict[str, object]](stack.stack.mongodb_uri)["omniagent"]
    if database.sessions.find_one({"_id": key}) is None:
        raise RuntimeError("the session was stored under another key")
    template = {message["role"]: message for message in database.messages.find({"session_id": key})}
    for start in range(2, turns + 1, 5_000):
        database.messages.insert_many(
            [
                template[role]
                | {
                    "_id": f"{session}-{role}-{number}",
                    "turn_number": number,
                    "place": 2 * number + (role == "assistant"),
                    "client_message_id": f"{role}-{number}",
                }
                for number in range(start, min(start + 5_000, turns + 1))
                for role in ("user", "assistant")
            ],
            ordered=False,
        )
    leaf = {"leaf.node": f"{session}-assistant-{turns}", "leaf.place": 2 * turns + 1, "latest_turn_number": turns}
    database.sessions.update_one({"_id": key}, {"$set": leaf})
    kept = 9
    database.summaries.insert_one(
        {
            "_id": f"{session}-summary",
            "session_id": key,
            "draft": False,
            "branch": 0,
            "content": "They said hello.",
            "token_count": 5,
            "start_turn_number": 1,
            "end_turn_number": max(turns - kept, 1),
            "created_at": template["user"]["created_at"],
        }
    )
    return session


def stop_latency(stack: BackgroundStack, stops: int) -> list[Figure]:
    """Time from the stop request to `abort` at the client."""
    client = Client(stack.url)
    client.post(f"/sessions/{new_session()}/cancel")  # warms up the sessions function
    times = []
    for _ in range(stops):
        session = new_session()
        asked_at = 0.0
        for number, arrival in enumerate(client.ask("[slow:20] [long:400]", session)):
            if number == 12:
                asked_at = time.monotonic()
                threading.Thread(target=client.post, args=(f"/sessions/{session}/cancel",)).start()
            if arrival.event["type"] == "abort":
                times.append((arrival.at - asked_at) * 1000)
    bound = TICK_SECONDS * 1000 + 150
    p95 = percentile(times, 0.95)
    return [
        Figure("stop, p50", "ms", percentile(times, 0.5)),
        Figure("stop, p95", "ms", p95, {"tick + 150 ms": bound}, p95 / bound, 1.0),
    ]


def memory(stack: BackgroundStack, model_url: str, turns: int, more_turns: int) -> list[Figure]:
    """Peak memory of the chat process, and how it grows."""
    client = Client(stack.url)
    session = new_session()
    prompt = "[echo:Hello there.]"

    def run(count: int) -> None:
        for _ in range(count):
            drain(client, prompt, session)

    run(turns // 2)
    pid = chat_pid(stack)
    early = memory_mb(pid)
    run(turns - turns // 2)
    peak = memory_mb(pid, "VmHWM")
    run(more_turns)
    growth = memory_mb(pid) - early
    peers = {name: _peak_of(name, model_url, prompt, turns) for name in FRAMEWORKS}
    return [
        compared(f"peak memory after {turns} turns", "MB", peak, peers, target=1.0),
        Figure("peak memory against 64 MB", "MB", peak, {"bound": MEMORY_BOUND_MB}, peak / MEMORY_BOUND_MB, 1.0),
        Figure(
            f"memory growth, turn {turns // 2} to {turns + more_turns}",
            "MB",
            growth,
            {"5 % of the whole": 0.05 * early},
            growth / (0.05 * early),
            1.0,
        ),
    ]


def _peak_of(peer: str, model_url: str, prompt: str, turns: int) -> float:
    # The kernel's peak of this process: `getrusage` would return that of the process it was forked from.
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__');"
        "print(open('/proc/self/status').read(), file=sys.stderr)"
    )
    done = subprocess.run(
        [str(python_of(peer)), "-c", code, str(script_of(peer)), model_url, prompt, str(turns)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return int(done.stderr.split("VmHWM:")[1].split()[0]) / 1024


def load(stack: BackgroundStack, streams: int, seconds: float) -> list[Figure]:
    """Many concurrent streams, each at 50 tokens a second: errors, and the longest silence within an answer.

    Measured from when all of them stream: on this machine each cold start takes its CPU from the other streams.
    """
    errors: list[str] = []
    silences: list[float] = []
    finished: list[int] = []
    streaming: set[int] = set()
    all_stream = threading.Event()
    end = time.monotonic() + 10 * seconds

    def note(number: int) -> None:
        nonlocal end
        streaming.add(number)
        if len(streaming) == streams and not all_stream.is_set():
            end = time.monotonic() + seconds
            all_stream.set()

    def talk(number: int) -> None:
        client = Client(stack.url, f"load-{number}")
        session = new_session()
        while time.monotonic() < end:
            last = None
            try:
                for arrival in client.ask("[slow:20] [long:500]", session):
                    if arrival.event["type"] != "text-delta":
                        continue
                    note(number)
                    if last is not None and all_stream.is_set():
                        silences.append(arrival.at - last)
                    last = arrival.at
                finished.append(number)
            except (OSError, RuntimeError) as exc:
                errors.append(f"{type(exc).__name__}: {exc}")

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    longest = max(silences, default=float("inf"))
    said = f"{len(finished)} turns; {errors[0] if errors else 'no error'}"
    return [
        Figure(f"errors with {streams} streams at once", "", len(errors), {}, float(len(errors)), 0.0, said),
        Figure(
            "longest silence within an answer",
            "s",
            longest,
            {"bound": 1.0},
            longest,
            1.0,
            f"of {len(silences):,} deltas, from when all {streams} processes stream",
        ),
    ]
