"""What a new kind of event costs: its class, what it changes in an answer, and where it is recorded."""

import shutil
import subprocess
import sys
from pathlib import Path

import omniagent

NEW_LINES = {
    "protocol/events.py": ("class StartStep(", 'class Mood(StreamEvent):\n    type = "mood"\n    word: str\n\n\n'),
    "turns/journal/recorder.py": (
        "            case events.StartStep():",
        '            case events.Mood():\n                self._grow("", DataPart(name="mood", data=entry.word))\n',
    ),
    "turns/engine/tool_loop.py": (
        "            request = model_request(",
        '            from omniagent.protocol.events import Mood\n            self._recorder.record(Mood("glad"))\n',
    ),
}
"""By file: the new lines, and the line that follows them."""
USE = """
import asyncio
from omniagent import Agent, DataPart, InMemorySessionManager, Runner
from omniagent.testing import MemoryRegistry, ScriptedModel
from omniagent.turns.journal.readers import fold

def moods(parts):
    return [part.data for part in parts if isinstance(part, DataPart)]

async def main():
    registry, session = MemoryRegistry(), InMemorySessionManager("ada", "one")
    runner = Runner(Agent("a", "b"), session, provider=ScriptedModel("Hello."), registry=registry)
    stream = await runner.start("Hi")
    assert b'{"type":"mood","word":"glad"}' in b"".join([frames async for frames in stream.sse()]), "streamed"
    await stream.ended()
    assert moods(fold(await registry.read(session.key, stream.journal_id)).recorder.parts) == ["glad"], "continued"
    assert moods((await runner.history())[-1].parts) == ["glad"], "stored"

asyncio.run(main())
"""


def test_a_new_kind_of_event_touches_three_files(tmp_path: Path) -> None:
    package = tmp_path / "omniagent"
    shutil.copytree(Path(omniagent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (next_line, lines) in NEW_LINES.items():
        text = (package / name).read_text()
        assert text.count(next_line) == 1, name
        (package / name).write_text(text.replace(next_line, lines + next_line))
    subprocess.run([sys.executable, "-c", USE], check=True, env={"PYTHONPATH": str(tmp_path)})
