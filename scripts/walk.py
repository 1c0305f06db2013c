"""Counts the files and functions of the package that one `POST /chat` runs: `make walk`.

The turn is warm and has no tool call. It runs the chat function's handler with MongoDB, the turn table and the offline
model: everything but Lambda's runtime client. Only functions that were called count, not imports. `tracing/`, which is
off and wraps everything, is not counted.
"""

import json
import os
import sys
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
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
MOST_FUNCTIONS = 520
QUESTION = "[echo:Hello.]"

Walked = dict[Path, set[str]]
"""The functions that ran, by file."""


class _Body:
    """Collects the streamed answer."""

    def __init__(self) -> None:
        self.text = ""

    async def write(self, data: bytes) -> None:
        self.text += data.decode()

    def end(self) -> None:
        """Nothing is left to do."""


@contextmanager
def watched(walked: Walked) -> Iterator[None]:
    """Record every function of the package that is called, in this thread and in those that start meanwhile."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "tracing"):
            walked[path].add(frame.f_code.co_qualname)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk() -> Walked:
    """Run two turns and return the functions that the second one called."""
    walked: Walked = defaultdict(set)
    with Mongod() as mongod, Aws() as aws, OfflineModel() as model:
        table = aws.deploy(Template())["TurnsTable"]["Ref"]
        os.environ.update(aws.environment)
        os.environ.update(MONGODB_URI=mongod.uri, OPENAI_BASE_URL=model.base_url, TURNS_TABLE=table, LOG_LEVEL="ERROR")
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


def functions_of(walked: Mapping[Path, set[str]]) -> int:
    return sum(len(names) for names in walked.values())


def report(walked: Mapping[Path, set[str]]) -> str:
    lines = [f"{len(names):4}  {path.relative_to(PACKAGE)}" for path, names in sorted(walked.items())]
    return "\n".join([*lines, f"POST /chat walks through {functions_of(walked)} functions in {len(walked)} files."])


if __name__ == "__main__":
    found = walk()
    print(report(found))
    sys.exit(not 0 < functions_of(found) <= MOST_FUNCTIONS)  # none: another copy of the package ran
