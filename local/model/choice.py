"""Which of the offered tools a prompt asks for, step by step."""

import json
import re
from collections.abc import Sequence

from local.model.arguments import derive, kind_of
from local.model.clues import Clues
from local.model.conversation import Call, Conversation, Json, Tool
from local.model.vocabulary import COMMON

MAX_PARALLEL = 4
MAX_PARTS = 12
MAX_SENTENCES = 40
_SENTENCE = re.compile(r"(?<=[.?!])\s+|\n+")
_THEN = re.compile(r"[\s,;.]*\b(?:and then|then|after that|afterwards)\b[\s,:]*", re.IGNORECASE)
_REQUEST = re.compile(
    r"\?|^\W*(?:please|and|also|now|first|finally|next|(?:can|could|would|will) you)?\W*"
    r"(?:what|when|where|which|who|how|tell|show|give|get|find|calculate|compute|convert|roll|search|look|use|call|"
    r"check|fetch|set|add|list|save|store|remember|book|send|create|make|translate|pick|flip|generate|draw|"
    r"refund|cancel|pay|multiply|divide|subtract|sum|count|read|write|open|run|try|why|explain|describe|compare|suggest|plan|help)\b",
    re.IGNORECASE,
)
_TIMES = re.compile(r"(?<=\d)\s*times\b")  # a sign, not the time


def steps(text: str, conversation: Conversation) -> list[tuple[Call, ...]]:
    """Plan the calls that a prompt asks for: parallel within a step, `then` starts the next one."""
    results = [output for _, output in conversation.results]
    planned = []
    for part in _THEN.split(text, maxsplit=MAX_PARTS):
        calls = [call for tool in conversation.tools for call in _calls(tool, part, [text, *results])]
        if calls:
            planned.append(tuple(calls[:MAX_PARALLEL]))
    return planned


def is_request(text: str) -> bool:
    """Whether a text asks for something, or only says something."""
    return any(_REQUEST.search(sentence) for sentence in _SENTENCE.split(text, maxsplit=MAX_SENTENCES))


def call_of(name: str, conversation: Conversation, text: str) -> Call:
    """A call of a tool that was named, with arguments from the prompt."""
    tool = conversation.tool(name)
    texts = [text, *(output for _, output in reversed(conversation.results))]
    return Call(name, _encode(derive(tool, texts) if tool else {}))


def fitting(schema: Json, text: str, results: Sequence[tuple[str, str]]) -> str:
    """An answer as JSON of a schema, from what the prompt and the tools said."""
    return _encode(derive(Tool("answer", "", schema), [text, *(output for _, output in reversed(results))]))


def _calls(tool: Tool, part: str, elsewhere: Sequence[str]) -> list[Call]:
    """The calls of one tool: none, one, or one for each place that the sentence names."""
    asking = " ".join(
        sentence for sentence in _SENTENCE.split(part, maxsplit=MAX_SENTENCES) if _asks_for(tool, sentence)
    )
    if not asking:
        return []
    subjects = _subjects(tool, asking) or [asking]
    return [Call(tool.name, _encode(derive(tool, [subject, part, *elsewhere]))) for subject in subjects]


def _subjects(tool: Tool, sentence: str) -> list[str]:
    properties = tool.parameters.get("properties") or {}
    if any(kind_of(name, field) in {"place", "zone"} for name, field in properties.items()):
        places = Clues(sentence).places
        return [f"in {place}" for place in places] if len(places) > 1 else []
    return []


def _asks_for(tool: Tool, sentence: str) -> bool:
    if re.search(rf"\b{re.escape(tool.name)}\b", sentence) and ("_" in tool.name or "tool" in sentence):
        return True
    properties = tool.parameters.get("properties") or {}
    if any(kind_of(name, field) == "sum" for name, field in properties.items()) and Clues(sentence).expression:
        return True
    if not _REQUEST.search(sentence):
        return False
    said = _words(_TIMES.sub(" ", sentence))
    named = _words(tool.name) - COMMON or _words(tool.name)
    described = {word for word in _words(tool.description) - COMMON if len(word) > 3}
    return _shared(named, said) > 0 or _shared(described, said - COMMON) > 1


def _words(text: str) -> set[str]:
    """The words of a sentence, or of a name in snake or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def _shared(words: set[str], said: set[str]) -> int:
    return sum(any(_alike(word, other) for other in said) for word in words)


def _alike(one: str, other: str) -> bool:
    """The same word, its plural or another form: calculator and calculate, but not add and address."""
    if one[0] != other[0]:
        return False
    short, long = sorted((one, other), key=len)
    if short == long or (long[:6] == short[:6] and len(short) >= 6):
        return True
    return len(short) >= 4 and long.startswith(short) and len(long) - len(short) <= 2


def _encode(arguments: dict[str, object]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
