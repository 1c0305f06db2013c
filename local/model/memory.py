"""What the offline model remembers: facts about the user, a summary, a name for the chat."""

import json
import re
from collections.abc import Iterable
from typing import Any

from local.model import demo
from local.model.conversation import Conversation
from local.model.legible import legible
from local.model.markers import plain
from local.model.vocabulary import DULL

MAX_FACTS = 20
MAX_TOPICS = 5
TITLE_WORDS = 6
_SUMMARY = re.compile(r"<\w*summary>")  # an application's own message, nothing that the user said
_SPEAKER = re.compile(r"^(user|assistant|human|ai|system)\s*:\s*", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_FACT = re.compile(
    r"\bmy \w[\w ]{0,40}? (?:is|are|was)\b|\bI(?:'m| am) (?:a |an |from |called )|\bcall me\b|\bremember\b"
    r"|\bI (?:live|work|like|love|prefer|have|need|want)\b|\buser'?s? name is\b",
    re.IGNORECASE,
)
_ASKS_MINE = re.compile(
    r"\bwhat(?:'s|\u2019s| is| was| are| were)? my ([\w ]{1,80}?)\s*(?:[?.!,]|\band\b|$)", re.IGNORECASE
)
_ASKS_WHERE = re.compile(r"\bwhere do I (live|work)\b", re.IGNORECASE)
_ASKS_WHO = re.compile(r"\bwho am I\b|\bdo you (?:know|remember) my name\b", re.IGNORECASE)
_ASKS_FACTS = re.compile(r"\bwhat do you (?:know|remember)\b|\bwhat have I told you\b", re.IGNORECASE)
_ASKS_SAID = re.compile(r"\bwhat did I (?:just |first )?(?:say|ask|tell|write)\b|\brepeat what I said\b", re.IGNORECASE)
_NAMED = (
    r"\b(?:my|user'?s?) name is\s+([^.,;!?\n]+)",
    r"\bcall me\s+([^.,;!?\n]+)",
    r"\bI(?:'m| am) called\s+([^.,;!?\n]+)",
)


def recall(prompt: str, conversation: Conversation) -> str | None:
    """Answer a question about something the user said before; None when it is not such a question."""
    told = [plain(message.text) for message in conversation.said("user")[:-1]]
    sources = [legible(conversation.instructions), *told]
    earlier = [text for text in told if not _SUMMARY.match(text)]
    if _ASKS_SAID.search(prompt):
        return f"You said: “{earlier[-1]}”" if earlier else "This is the first thing you said to me."
    if _ASKS_FACTS.search(prompt):
        known = facts(sources)
        return "Here is what you told me:\n\n" + _bullets(known) if known else "You have not told me anything yet."
    if _ASKS_WHO.search(prompt):
        return _told("name", _NAMED, sources)
    if where := _ASKS_WHERE.search(prompt):
        place = _find([rf"\bI {where[1]} (?:in|at|for)\s+([^.,;!?\n]+)"], sources)
        return f"You {where[1]} in **{place}**." if place else f"You have not told me where you {where[1]}."
    if mine := _ASKS_MINE.search(prompt):
        thing = mine[1].strip()
        patterns = _NAMED if thing.lower() == "name" else (rf"\bmy {re.escape(thing)} (?:is|are|was)\s+([^.,;!?\n]+)",)
        return _told(thing, patterns, sources)
    return None


def facts(texts: Iterable[str]) -> list[str]:
    """The sentences in which the user says something about themselves, newest last."""
    found: dict[str, None] = {}
    for text in texts:
        for sentence in _SENTENCE.split(text):
            line = sentence.strip(' -*#“”"')
            if _FACT.search(line) and not line.endswith("?"):
                found.pop(line, None)
                found[line] = None
    return list(found)[-MAX_FACTS:]


def summary(conversation: Conversation) -> str:
    """A short text that keeps the facts: of the conversation given, or of the transcript in the last message."""
    said, before = _spoken(conversation)
    about = "; ".join(dict.fromkeys(topic for text in said[-MAX_TOPICS:] if (topic := _topic(text))))
    lines = [f"The user and the assistant talked about: {about or 'nothing in particular'}."]
    if known := facts([before, *said]):
        lines += ["What the user said:", _bullets(known)]
    return "\n".join(lines)


def title(conversation: Conversation) -> str:
    """Name a conversation by the first words of the first text that is about something."""
    said, before = _spoken(conversation)
    # Headings are the application's words, and say nothing of what was talked about.
    known = "\n".join(line for line in before.splitlines() if not line.startswith("#"))
    for text in [*said, known]:
        if written := demo.title(text):
            return written
        if _is_about_something(text):
            return " ".join(text.split()[:TITLE_WORDS]).rstrip(",;:.?! ")
    return "A Short Friendly Chat"


def _spoken(conversation: Conversation) -> tuple[list[str], str]:
    """What the user said, and what was known before: from a transcript, or from the messages themselves."""
    text = conversation.prompt
    if lines := _json_lines(text):
        before = "\n".join(str(value) for line in lines if "role" not in line for value in line.values() if value)
        return [plain(line["text"]) for line in lines if line.get("role") == "user"], legible(before)
    marks = list(_SPEAKER.finditer(text))
    if not marks:
        messages = [plain(message.text) for message in conversation.said("user")]
        return messages[:-1] or messages, legible(conversation.instructions)
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    said = [
        plain(text[mark.end() : end])
        for mark, end in zip(marks, ends, strict=True)
        if mark[1].lower() in {"user", "human"}
    ]
    return said, legible(text[: marks[0].start()])


def _json_lines(text: str) -> list[dict[str, Any]]:
    """A transcript with one JSON object per line, or nothing if it is none."""
    try:
        lines = [json.loads(line) for line in text.split("\n")]
    except ValueError:
        return []
    return lines if all(isinstance(line, dict) for line in lines) else []


def _told(thing: str, patterns: Iterable[str], sources: list[str]) -> str:
    value = _find(patterns, sources)
    return f"Your {thing} is **{value}**." if value else f"You have not told me your {thing} yet."


def _find(patterns: Iterable[str], sources: list[str]) -> str | None:
    """The newest thing said that fits one of the patterns."""
    for text in reversed(sources):
        for pattern in patterns:
            if matches := re.findall(pattern, text, re.IGNORECASE):
                return re.split(r"\s+(?:and|but)\s+", str(matches[-1]))[0].strip(" *“”\"'")
    return None


def _topic(text: str) -> str:
    return " ".join(text.split()[:12]).rstrip(".?!,:")


def _is_about_something(text: str) -> bool:
    return any(word not in DULL for word in re.findall(r"\w+", text.lower()))


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
