"""Answers written by hand, for the suggestions of the example agent: a newcomer's first words from this product."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Results = Sequence[tuple[str, str]]
"""Name and output of each tool that was called."""

_PRIME = '''Trial division up to the square root is enough: a larger divisor would have a smaller partner.

```python
from math import isqrt


def is_prime(number: int) -> bool:
    """Return whether a number is prime."""
    if number < 2:
        return False
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))


assert [n for n in range(20) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19]
```

For numbers of more than about 15 digits, use the Miller-Rabin test instead.'''

_COMPARE = """| | Lambda | Containers |
|---|---|---|
| **Idle cost** | nothing | you pay around the clock |
| **Long answers** | up to 15 minutes, streamed | no limit |
| **A crash** | hits one answer | hits every answer of that process |
| **Scaling** | a process per answer, in a moment | minutes, and you plan for the peak |
| **First request** | a cold start of about a second | always warm |

**Take Lambda** when traffic is uneven and you want no servers to look after: a turn that dies is continued by another
process, so a crash costs seconds and not an answer. **Take containers** when you have steady traffic all day, or
connections that last for hours.

You can try the crash here: ask me something long, and choose *Break it* above."""


def _tools(results: Results) -> str | None:
    found = dict(results)
    if "calculator" not in found or "current_time" not in found:
        return None
    return f"17.5% of 2,340 is **{_text(found['calculator'])}**.\n\nIn Tokyo it is **{_text(found['current_time'])}**."


def _refund(results: Results) -> str | None:
    output = _text(dict(results).get("refund", ""))
    if not output:
        return None
    if paid := re.search(r"Refunded ([\d.]+) euros for order (\d+) \(payment (\S+)\)", output):
        amount, order, payment = paid.groups()
        return f"Done: **{amount} €** for order {order} are on their way.\n\nThe payment's reference is `{payment}`."
    reason = output.partition("Reason: ")[2].strip()
    because = f" The reason you gave: “{reason}”" if reason else ""
    return f"I have not paid anything back for order 1001.{because}\n\nShall I do something else about it?"


@dataclass(frozen=True)
class _Written:
    """The name of a chat that begins with a suggestion, and the answer to it."""

    title: str
    answer: Callable[[Results], str | None]


_WRITTEN = {
    "what is 17.5% of 2,340 and what time is it in tokyo?": _Written("17.5% and Tokyo time", _tools),
    "please refund order 1001, 80 euros": _Written("Refund of order 1001", _refund),
    "write a python function that checks whether a number is prime": _Written("Prime numbers", lambda _: _PRIME),
    "compare lambda with containers for a chat backend": _Written("Lambda or containers", lambda _: _COMPARE),
}


def answer(prompt: str, results: Results) -> str | None:
    """Return the answer to a suggestion once its tools have returned, else None."""
    written = _WRITTEN.get(_normal(prompt))
    return written.answer(results) if written else None


def title(prompt: str) -> str | None:
    """Return the name of a chat that begins with a suggestion, else None."""
    written = _WRITTEN.get(_normal(prompt))
    return written.title if written else None


def _normal(prompt: str) -> str:
    return " ".join(prompt.lower().split())


def _text(output: str) -> str:
    """Return a tool's output without the quotes of JSON."""
    try:
        return str(json.loads(output))
    except ValueError:
        return output
