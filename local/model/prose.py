"""Answers that look right in a demo: Markdown of the kind the prompt asks for."""

import ast
import json
import operator
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

from local.model import choice, memory, snippets
from local.model.clues import Clues
from local.model.conversation import Conversation

_LEAD = re.compile(
    r"^(?:please|now|can you|could you|would you|tell me|explain|describe|discuss|compare|write|give me|show me|list|"
    r"make|create|suggest|i want|i need|help me(?: with)?|what(?:'s| is| are| was)|"
    r"how (?:do|does|can|should) (?:i|you|we|it)|how (?:to|does|do|is|are)|why (?:is|are|do|does)|who (?:is|was|are)|"
    r"when (?:is|was)|where (?:is|are)|about|of|some|a|an|the|to|me|\d+|ideas for|tips for|steps to|ways to)\s+",
    re.IGNORECASE,
)
_GREETING = re.compile(r"^\W*(?:hi|hello|hey|good (?:morning|afternoon|evening)|greetings)\b[^?]*$", re.IGNORECASE)
_SMALL_TALK = re.compile(r"\bhow are you\b|\bhow's it going\b|\bwho are you\b|\bwhat can you do\b", re.IGNORECASE)
_THANKS = re.compile(r"^\W*(?:thanks|thank you|cheers|great|perfect|cool|nice)\b[^?]*$", re.IGNORECASE)
_MY_NAME = re.compile(r"\b(?:my name is|call me|I am called)\s+([A-Z][\w'\u2019-]*)", re.IGNORECASE)
_SUMMARY = re.compile(r"\bsummar(?:y|i[sz]e)\b.{0,100}\b(?:conversation|chat|talk|far)\b|\brecap\b", re.IGNORECASE)
_COMPARE = re.compile(r"\b(?:difference between|compare)\b|\bvs\.?\b|\bversus\b", re.IGNORECASE)
_LIST = re.compile(r"\b(?:list|ideas|tips|steps|ways|examples|reasons|plan|checklist|recipe)\b", re.IGNORECASE)
_OFFLINE = "_I am the offline model: my words are made up on this machine, everything around them is real._"
_TEXT = (
    "The stream keeps its order and every token arrives once while the reader waits for the next word to come so "
    "nothing is lost between the model and the screen"
)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}

MAX_SUM_CHARS = 100
MAX_LENGTH = 200_000
REFUSAL = "I'm sorry, but I can't help with that request."


def reply(text: str, conversation: Conversation) -> str:
    """Answer a prompt."""
    remembered = memory.recall(text, conversation)
    return remembered or _personal(text, conversation) or _calculated(text) or _written(text)


def reasoning(text: str, conversation: Conversation) -> str:
    """What goes on before the answer."""
    names = ", ".join(tool.name for tool in conversation.tools) or "no tools"
    return (
        f"**Reading the request**\n\nThe user asks about {topic(text) or 'nothing in particular'}. "
        f"I can use {names}. {len(conversation.results)} results are in. I will answer briefly and stay with the facts."
    )


def report(results: list[tuple[str, str]]) -> str:
    """Answer with what the tools returned."""
    if len(results) == 1:
        name, output = results[0]
        return f"The **{name}** tool answered: {_readable(output)}"
    lines = "\n".join(f"- **{name}**: {_readable(output)}" for name, output in results)
    return f"Here is what the tools answered:\n\n{lines}\n\nTell me if you want more detail on one of them."


def long(length: int) -> str:
    """A text of exactly so many tokens, up to the longest that there is."""
    return "".join(islice(_endless(), min(length, MAX_LENGTH)))


def topic(text: str) -> str:
    """What a prompt is about, in a few words."""
    about = re.split(r"[?!.\n]", text.strip())[0].strip()
    while about and (shorter := _LEAD.sub("", about, count=1)) != about:
        about = shorter
    return " ".join(about.split()[:8])


def _personal(text: str, conversation: Conversation) -> str | None:
    if _SUMMARY.search(text):
        return "## Summary\n\n" + memory.summary(conversation)
    if name := _MY_NAME.search(text):
        return f"Nice to meet you, **{name[1]}**! I will remember that. What can I do for you?"
    if _GREETING.search(text):
        return f"Hello! Ask me anything, or try one of my tools.\n\n{_OFFLINE}"
    if _SMALL_TALK.search(text):
        tools = ", ".join(f"`{tool.name}`" for tool in conversation.tools)
        return f"I am well, thank you. I answer questions{f' and can use {tools}' if tools else ''}.\n\n{_OFFLINE}"
    if _THANKS.search(text):
        return "You're welcome! Is there anything else I can help with?"
    return None


def _calculated(text: str) -> str | None:
    expression = Clues(text).expression
    if not expression or len(expression) > MAX_SUM_CHARS:
        return None
    try:
        return f"{expression} = **{_evaluate(ast.parse(expression, mode='eval').body):g}**"
    except (ArithmeticError, MemoryError, RecursionError, SyntaxError, ValueError):
        return None


def _evaluate(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return float(_OPERATORS[type(sign)](_evaluate(left), _evaluate(right)))
    raise ValueError("not a sum of numbers")


def _written(text: str) -> str:
    about = topic(text) or "this"
    heading = f"## {about[:1].upper()}{about[1:]}"
    if code := snippets.for_prompt(text):
        lead, rest = "Here is a small version to build on:", "It handles the usual case; add checks for your own input."
        return f"{heading}\n\n{lead}\n\n{code}\n\n{rest}"
    if _COMPARE.search(text):
        advice = "Take the first when you want to start quickly, the second when you expect to grow."
        return f"{heading}\n\n{_table(about)}\n\n{advice}"
    if _LIST.search(text):
        return f"{heading}\n\n{_numbered(about)}\n\nShall I go deeper into one of these?"
    if text and not choice.is_request(text):
        return f"Thank you for telling me: “{about}”. I will keep it in mind. Do you want me to do something with it?"
    variants = (_in_short, _explained, _in_steps)
    return f"{heading}\n\n{variants[zlib.crc32(text.encode()) % len(variants)](about)}\n\n{_OFFLINE}"


def _explained(about: str) -> str:
    return (
        f"There are three sides to **{about}**:\n\n"
        "- **What it is**: the part that people notice first.\n"
        "- **How it works**: small steps, each simple, each easy to check.\n"
        "- **Why it matters**: it saves time once it is in place.\n\n"
        "Start with the first, and come back to the others when you need them."
    )


def _in_short(about: str) -> str:
    return (
        f"In short: **{about}** is best understood by trying it on something small.\n\n"
        "### Worth knowing\n\n"
        "1. Begin with a case that you can check by hand.\n"
        "2. Change one thing at a time, and look at what happens.\n"
        "3. Write down what surprised you.\n\n"
        "> A small example that works teaches more than a long text."
    )


def _in_steps(about: str) -> str:
    return (
        f"Here is a way into **{about}**:\n\n"
        "1. **Look** at what you already have.\n"
        "2. **Choose** the one thing that would help most.\n"
        "3. **Do** it, and *measure* whether it helped.\n\n"
        "If you tell me more about your situation, I can be more precise."
    )


def _numbered(about: str) -> str:
    points = ("Set a goal you can see", "Start with the smallest step", "Ask someone who has done it", "Review weekly")
    return f"On **{about}**:\n\n" + "\n".join(f"{n}. **{point}**." for n, point in enumerate(points, 1))


def _table(about: str) -> str:
    sides = re.split(r"\s+(?:and|vs\.?|versus|with|or)\s+", re.sub(r"^.*\bbetween\s+", "", about), maxsplit=1)
    one, other = (*sides, "The alternative")[:2]
    rows = (f"| | {one} | {other} |", "|---|---|---|", "| Start | quick | takes a while |", "| Cost | low | grows |")
    return "\n".join(rows)


def _readable(output: str) -> str:
    """A tool's JSON as a person would write it; anything else as it is."""
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return output.strip() or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _endless() -> Iterator[str]:
    """Tokens of sentences without end: each is one piece for `tokens.split`."""
    words = [*(f" {word}" for word in _TEXT.split()), "."]
    yield words[0].lstrip()
    yield from islice(cycle(words), 1, None)
