"""Counts the functions of the package that one `POST /chat` with a tool call runs, and its switches: `make walk`.

The turn is warm. It runs the chat function's handler with MongoDB, the turn table, the run queue and the offline model:
everything but Lambda's runtime client. Named functions that were called count, each once; comprehensions and lambdas
are part of the function around them. Whoever reads the functions in the order of their first calls switches files so
often. `tracing/`, which is off and wraps everything, is not counted.
"""

import json
import os
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from local.aws import Aws
from local.model import OfflineModel
from local.mongod import Mongod
from local.template import ROOT, Template

PACKAGE = ROOT / "layers" / "core" / "omniagent"
FUNCTIONS = ROOT / "functions"
MOST_FUNCTIONS = 300
MOST_SWITCHES = 150
QUESTION = '[tool:calculator {"expression": "1 + 2"}][then][echo:Hello.]'


@dataclass
class Walk:
    """What one request called."""

    functions: dict[Path, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By file."""
    switches: int = 0
    _last: Path | None = None

    def note(self, path: Path, name: str) -> None:
        if name.endswith(">") or name in self.functions[path]:
            return  # a lambda, a comprehension, or read before
        self.functions[path].add(name)
        self.switches += self._last not in (None, path)
        self._last = path

    @property
    def count(self) -> int:
        return sum(len(names) for names in self.functions.values())


class _Body:
    """Collects the streamed answer."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, data: bytes) -> None:
        self.text += data.decode()

    def end(self) -> None:
        """Nothing is left to do."""


@contextmanager
def watched(walked: Walk) -> Iterator[None]:
    """Record every function of the package that is called, in this thread and in those that start meanwhile."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "tracing"):
            walked.note(path, frame.f_code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk() -> Walk:
    """Run two turns and return what the second one called."""
    walked = Walk()
    with Mongod() as mongod, Aws() as aws, OfflineModel() as model:
        deployed = aws.deploy(Template())
        os.environ.update(aws.environment)
        os.environ.update(MONGODB_URI=mongod.uri, OPENAI_BASE_URL=model.base_url, LOG_LEVEL="ERROR")
        os.environ.update(TURNS_TABLE=deployed["TurnsTable"]["Ref"], RUN_QUEUE_URL=deployed["RunQueue"]["Ref"])
        os.environ.update(LEASE_SECONDS="60", TICK_SECONDS="15")  # a turn on a slow machine is shorter, too
        os.environ["TRUSTED_PRINCIPALS"] = "arn:aws:iam::123456789012:role/web-backend"  # signs the sample events
        sys.path.insert(0, str(FUNCTIONS))
        from chat.app import app, handler  # needs the environment set above

        _ask(handler)
        with watched(walked):
            _ask(handler)
        _close(app)
    return walked


def _ask(handler: Any) -> None:
    from omniagent.lambda_runtime import event_loop

    event = json.loads((ROOT / "events" / "chat-plain.json").read_text())
    event["body"] = json.dumps({"session_id": "walk", "query": QUESTION, "message_id": uuid.uuid4().hex})
    event["headers"]["content-length"] = str(len(event["body"]))
    context = SimpleNamespace(aws_request_id="walk", get_remaining_time_in_millis=lambda: 60_000)
    result, body = handler(event, context), _Body()
    with redirect_stdout(StringIO()):  # the turn's metrics
        event_loop.run(result.stream(body))
    if not body.text.endswith("data: [DONE]\n\n"):
        raise RuntimeError(f"the turn failed: {body.text}")


def _close(app: Any) -> None:
    from omniagent.lambda_runtime import event_loop

    event_loop.run(app.state.application.close())


def report(walked: Walk) -> str:
    found = sorted(walked.functions.items())
    lines = [f"{len(names):4}  {path.relative_to(PACKAGE)}" for path, names in found]
    total = f"{walked.count} functions in {len(found)} files, and switches files {walked.switches} times"
    return "\n".join([*lines, f"POST /chat with a tool call walks through {total}."])


if __name__ == "__main__":
    found = walk()
    print(report(found))
    is_short = 0 < found.count <= MOST_FUNCTIONS and found.switches <= MOST_SWITCHES  # none: another copy ran
    sys.exit(not is_short)
