"""Whatever a model and its tools do: what a reader saw live, joined or replayed is what is stored."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from omniagent import Query, RunContext, ToolError, tool
from omniagent.ai.providers.llm_provider import ModelReasoning, ModelReasoningDone, ModelSource, ModelText
from omniagent.errors import ModelStreamBroken
from omniagent.protocol import sse
from omniagent.testing import ScriptedModel, ToolCall
from omniagent.turns.journal.replay import missing_frames
from tests.fixtures.conversation import QUICK, read
from tests.fixtures.examples import examples
from tests.fixtures.live_turns import answer_of
from tests.runner.sessions import Sessions, parts_of, shown

DEEP = "[" * 3000 + "]" * 3000
VALUES: list[Any] = [
    *("", "\ud800", "a\0b", "x" * 70_000, '{"$ref": "a", "$id": 1}'),
    *(None, True, 2**70, float("nan"), float("-inf"), b"\xff", object(), {1}),
    *({"$ref": "a", "$id": "b"}, {"a.b": 1, "$c": 2, "": 3, "\0": 4}, {1: {2: [3]}}, {"long": "y" * 90_000}),
]
TEXTS = ["Hi ", "\ud83d", "\ude00", "\0", "\n\n", "data: [DONE]\n\n", "x" * 60_000, ""]
ARGUMENTS: list[Any] = [
    {"n": 1},
    {"n": "one"},
    "nope",
    "",
    '{"n": 1e999}',
    "[1]",
    '{"n": ' + DEEP + "}",
    "x" * 60_000,
    "\ud800",
]


class Chaos:
    """A model and a tool that do odd things, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.model = ScriptedModel(
            default=lambda _: [self._beat() for _ in range(self.random.randint(1, 6))], tools_may_crash=True
        )

        @tool
        async def odd(n: int, context: RunContext) -> Any:
            """Do something odd."""
            return self._odd(context)

        self.tool = odd

    def _beat(self) -> Any:
        pick = self.random.choice
        beats = [pick(TEXTS), ModelText(pick(TEXTS)), ModelReasoning(pick(TEXTS)), ToolCall("odd", pick(ARGUMENTS))]
        source = ModelSource(pick(["https://a.example/1", "https://b.example", None]), pick(TEXTS))
        rare = [source, ModelReasoningDone(pick([None, {"sealed": "a"}])), ModelStreamBroken("broken")]
        return pick([*beats, *beats, *rare])

    def _odd(self, context: RunContext) -> Any:
        pick = self.random.choice
        context.emit("odd", pick(VALUES[:-1]), id=pick([None, "1", "2"]), transient=pick([True, False]))
        match pick(["returns", "returns", "reports", "raises"]):
            case "reports":
                raise ToolError(f"{pick(TEXTS)[:100]}")
            case "raises":
                raise RuntimeError("a bug")
        return pick(VALUES)


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_what_a_reader_saw_is_what_is_stored(seed: int) -> None:
    chaos, sessions = Chaos(seed), Sessions(replace(QUICK, max_steps=3))
    runner = sessions.runner(chaos.model, chaos.tool)
    for number in (1, 2, 3):
        query = Query(f"Question {number} \ud800", f"m{number}")
        stream, joined = await runner.start(query), await runner.start(query)
        live = await read(stream)
        assert (await stream.result()).stored
        answer = await answer_of(sessions.session(), number)
        assert answer is not None
        stored = shown(list(answer.parts))
        assert shown(parts_of(live)) == stored
        assert shown(parts_of(await read(joined))) == stored
        if answer.status == "complete":
            assert shown(parts_of(await read(await runner.start(query)))) == stored
        frames = live.split(sse.DONE)[0].split(b"\n\n")
        end = next(index for index, frame in enumerate(frames) if b'"type":"finish"' in frame)
        for cut in chaos.random.sample(range(1, end), min(5, end - 1)):
            sent = b"".join(frame + b"\n\n" for frame in frames[:cut])
            lines = [frame.removeprefix(b"data: ") for frame in frames[:cut]]
            assert shown(parts_of(sent + missing_frames(lines, answer))) == stored
