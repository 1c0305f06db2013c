"""Code blocks for prompts that ask for code."""

import re

_ASKS = re.compile(r"\b(?:code|function|script|program|snippet|class|query|implement|regex)\b", re.IGNORECASE)
_LANGUAGES = {
    "python": re.compile(r"\bpython\b", re.IGNORECASE),
    "typescript": re.compile(r"\b(?:typescript|ts)\b", re.IGNORECASE),
    "javascript": re.compile(r"\b(?:javascript|js|node|react)\b", re.IGNORECASE),
    "sql": re.compile(r"\bsql\b", re.IGNORECASE),
    "bash": re.compile(r"\b(?:bash|shell)\b", re.IGNORECASE),
}
_KNOWN = {
    "reverse": 'def reverse(text: str) -> str:\n    return text[::-1]\n\n\nprint(reverse("stream"))  # maerts',
    "fibonacci": (
        "def fibonacci(count: int) -> list[int]:\n    numbers = [0, 1]\n    while len(numbers) < count:\n"
        "        numbers.append(numbers[-1] + numbers[-2])\n    return numbers[:count]\n\n\nprint(fibonacci(10))"
    ),
    "prime": (
        "def is_prime(number: int) -> bool:\n    divisors = range(2, int(number**0.5) + 1)\n"
        "    return number > 1 and all(number % divisor for divisor in divisors)\n\n\n"
        "print([n for n in range(30) if is_prime(n)])"
    ),
    "palindrome": (
        "def is_palindrome(text: str) -> bool:\n    letters = [c.lower() for c in text if c.isalnum()]\n"
        "    return letters == letters[::-1]"
    ),
    "fizzbuzz": (
        'for number in range(1, 101):\n    text = "Fizz" * (number % 3 == 0) + "Buzz" * (number % 5 == 0)\n'
        "    print(text or number)"
    ),
}
_GENERIC = {
    "python": (
        "def solve(items: list[str]) -> dict[str, int]:\n    counts: dict[str, int] = {}\n    for item in items:\n"
        "        counts[item] = counts.get(item, 0) + 1\n    return counts"
    ),
    "typescript": (
        "export function solve(items: string[]): Map<string, number> {\n  const counts = new Map<string, number>();\n"
        "  for (const item of items) counts.set(item, (counts.get(item) ?? 0) + 1);\n  return counts;\n}"
    ),
    "javascript": (
        "export function solve(items) {\n  const counts = {};\n"
        "  for (const item of items) counts[item] = (counts[item] ?? 0) + 1;\n  return counts;\n}"
    ),
    "sql": "SELECT name, count(*) AS total\nFROM items\nGROUP BY name\nORDER BY total DESC\nLIMIT 10;",
    "bash": '#!/usr/bin/env bash\nset -euo pipefail\n\nsort "$1" | uniq -c | sort -rn | head',
}


def for_prompt(prompt: str) -> str | None:
    """A fenced code block in the language asked for, or None when the prompt asks for no code."""
    named = next((name for name, pattern in _LANGUAGES.items() if pattern.search(prompt)), None)
    if not _ASKS.search(prompt):
        return None
    known = next((code for word, code in _KNOWN.items() if word in prompt.lower()), None)
    language = named or "python"
    code = known if known and language == "python" else _GENERIC[language]
    return f"```{language}\n{code}\n```"
