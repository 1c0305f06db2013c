"""`make smoke MODEL=…`: asks a real model for what the rules claim, and prints where it differs.

    make smoke MODEL=anthropic/claude-sonnet-5-5 ANTHROPIC_API_KEY=sk-key
    make smoke MODEL=bedrock/global.anthropic.claude-sonnet-5-5        with the credentials of this shell
    make smoke MODEL=openai-chat/llama3.2 OPENAI_BASE_URL=http://127.0.0.1:11434/v1

The settings are those of the environment, as on Lambda. It makes six requests, two with a long prompt, and one for each
kind of file.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence

from omniagent.ai.providers import chain_of
from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import Overrides
from omniagent.ai.providers.model_rules import rules_of
from omniagent.errors import ConfigurationError, ModelRejected, OmniAgentError
from omniagent.messages import ChatMessage, StepPart, ToolPart
from omniagent.providers import (
    LLMProvider,
    ModelEvent,
    ModelFinish,
    ModelRequest,
    ModelText,
    ModelToolCall,
    OutputFormat,
    ProviderPool,
    ToolSpec,
)
from omniagent.settings import Settings
from scripts.sample_files import PART_OF, extra_of


def _object(**kinds: str) -> dict[str, object]:
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "required": list(kinds), "additionalProperties": False}


ADD = ToolSpec("add", "Add two whole numbers.", _object(a="integer", b="integer"))
CITY = OutputFormat("city", _object(city="string", country="string"))
RULES = 400
"""Lines of instructions: more tokens than any vendor demands of a prompt that it caches."""


class Differs(Exception):
    """The model does something else than the rules claim. The message says what."""


class ModelSmoke:
    """The checks, in order. Each returns what it found, or raises `Differs`."""

    def __init__(self, provider: LLMProvider, refused: Sequence[str] = ()) -> None:
        """`refused` is filled with the names of fields that the API refuses."""
        self._provider = provider
        self._refused = refused

    def checks(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {
            "stream": self.stream,
            "tool": self.tool,
            "typed output": self.typed_output,
            "cache hit": self.cache_hit,
            "files": self.files,
            "fields": self.fields,
        }

    async def stream(self) -> str:
        # As instructions of a turn are sent: a model that refuses them after the question is named under "fields".
        question = [ChatMessage.user("Count from one to ten."), ChatMessage.system("Write numbers as words.")]
        events = await self._ask(ModelRequest("Be brief.", question))
        pieces, finish = [event for event in events if isinstance(event, ModelText)], _finish(events)
        _expect(pieces, "the answer has no text")
        _expect(finish.reason == "stop", f"the answer ended with {finish.reason}")
        _expect(finish.usage.input_tokens and finish.usage.output_tokens, f"no usage was reported: {finish.usage}")
        return f"{len(pieces)} pieces, {finish.usage.input_tokens} tokens in, {finish.usage.output_tokens} out"

    async def tool(self) -> str:
        question = ChatMessage.user("What is 17 add 25? Use the tool.")
        events = await self._ask(ModelRequest("Use tools for arithmetic.", [question], [ADD]))
        calls = [event for event in events if isinstance(event, ModelToolCall)]
        _expect(calls, f"no tool was called: {_text(events)[:200]!r}")
        call, arguments = calls[0], json.loads(calls[0].arguments)
        _expect(set(arguments) == {"a", "b"}, f"the arguments do not fit the schema: {call.arguments[:200]}")
        _expect(_finish(events).reason == "tool-calls", f"the answer ended with {_finish(events).reason}")
        result = ToolPart(call_id=call.call_id, name=call.name, input=arguments, output=42, done=True)
        answer = ChatMessage(role="assistant", parts=[StepPart(), result])
        events = await self._ask(ModelRequest("Use tools for arithmetic.", [question, answer], [ADD]))
        _expect("42" in _text(events), f"the result was not used: {_text(events)[:200]!r}")
        return f"{call.name}({call.arguments}), and its result is used"

    async def typed_output(self) -> str:
        question = ChatMessage.user("Which city is the capital of France?")
        text = _text(await self._ask(ModelRequest("Answer the question.", [question], output=CITY)))
        try:
            value = json.loads(text)
        except ValueError:
            raise Differs(f"the answer is not JSON: {text[:200]!r}") from None
        fits = isinstance(value, dict) and set(value) == {"city", "country"}
        _expect(fits, f"the answer does not fit the schema: {text[:200]}")
        return text

    async def cache_hit(self) -> str:
        run = uuid.uuid4().hex  # a prompt that nobody has cached
        rules = "\n".join(f"Rule {number} of {run[:8]}: be as brief as possible." for number in range(RULES))
        request = ModelRequest(rules, [ChatMessage.user("Say hello.")], cache_key=run)
        first, second = [_finish(await self._ask(request)).usage for _ in range(2)]
        told = f"{second.cached_input_tokens} of {second.input_tokens} tokens read from the cache"
        _expect(second.cached_input_tokens, f"{told} ({first.cache_write_tokens} written before)")
        return told

    async def files(self) -> str:
        """Send a file of each kind that the API has a part for. It takes those that the rules name, and no other."""
        claimed = rules_of(self._provider.model).files
        if claimed is None or not isinstance(self._provider, ApiProvider):
            return "the rules name none for this model"
        refusals = {}
        for kind in PART_OF[self._provider.path]:
            try:
                await self._ask(ModelRequest("", [], overrides=Overrides(extra=extra_of(self._provider.path, kind))))
            except ModelRejected as refusal:
                refusals[kind] = str(refusal)
        sent = PART_OF[self._provider.path].keys()
        differing = [f"{kind} is refused: {refusals[kind]}" for kind in sent if kind in claimed and kind in refusals]
        differing += [f"{kind} is taken" for kind in sent if kind not in claimed and kind not in refusals]
        _expect(not differing, "; ".join(differing))
        return ", ".join(f"{kind} {'refused' if kind in refusals else 'taken'}" for kind in sent)

    async def fields(self) -> str:
        _expect(not self._refused, f"the API refuses {', '.join(self._refused)}, which the rules send")
        return "none refused"

    async def _ask(self, request: ModelRequest) -> list[ModelEvent]:
        return [event async for event in self._provider.stream(request)]


def _expect(ok: object, message: str) -> None:
    if not ok:
        raise Differs(message)


def _text(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ModelText))


def _finish(events: Sequence[ModelEvent]) -> ModelFinish:
    last = events[-1] if events else None
    if not isinstance(last, ModelFinish):
        raise Differs("the answer has no end")
    return last


async def run(provider: LLMProvider, refused: Sequence[str] = ()) -> bool:
    """Run and print every check, and return whether all found what the rules claim."""
    results: dict[str, str] = {}
    for name, check in ModelSmoke(provider, refused).checks().items():
        try:
            results[name], text = "ok", await check()
        except (Differs, ValueError) as error:
            results[name], text = "DIFFERS", str(error)
        except OmniAgentError as error:
            is_refused = isinstance(error, ModelRejected) and "ok" in results.values()
            results[name], text = "DIFFERS" if is_refused else "FAILED", str(error)
        print(f"  {results[name]:7} {name:14} {text}", flush=True)
        if results == {"stream": "FAILED"}:
            break  # no request of this account, model or address has an answer
    for result, claim in (("DIFFERS", "differs from the rules"), ("FAILED", "could not be asked")):
        if names := [name for name, found in results.items() if found == result]:
            print(f"{provider.model} {claim}: {', '.join(names)}.")
    is_ok = set(results.values()) == {"ok"}
    if is_ok:
        print(f"{provider.model} does what the rules claim.")
    return is_ok


async def smoke(models: str) -> int:
    """Check a model, or each of a chain: in it, another one would answer for the one that fails."""
    refused: list[str] = []
    pool = ProviderPool.from_settings(Settings.from_env(), verbose_errors=True, on_refused_field=refused.append)
    try:
        results = []
        for model in chain_of(models):
            refused.clear()
            results.append(await run(pool.get(model), refused))
        return 0 if all(results) else 1
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        await pool.aclose()


def main(arguments: Sequence[str]) -> int:
    return asyncio.run(smoke(arguments[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
