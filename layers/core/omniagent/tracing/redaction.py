"""Masks secrets in logs: known ones, values of fields with a secret's name, and text that looks like a secret."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

MASK: Final = "***"
_MAX_DEPTH: Final = 8
# A shorter one could be a part of ordinary words.
_MIN_KNOWN_LENGTH: Final = 8
_PASSWORD: Final = re.compile(r"://[^:/@\s]{0,512}:([^@/\s]{1,512})@")

_known: set[str] = set()

# Matches the end of a name, so that `access_token` is masked and `token_count` is not.
_SECRET_NAME: Final = re.compile(
    r"(?:authorization|cookie|credentials?|passwd|password|secret|token|uri"
    r"|(?:access|api|private|secret)[_-]?key)$",
    re.IGNORECASE,
)

# Every pattern is bounded or repeats a single character class, so no text makes it slow.
_SECRET_TEXTS: Final = (
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), f"sk-{MASK}"),
    # Keys by their prefix: Stripe, GitHub, GitLab, Google, Slack, AWS.
    (
        re.compile(r"\b((?:[spr]k_(?:live|test)|gh[opsur]|github_pat)_|glpat-|AIza|xox[abeoprs]-)[\w-]{8,}"),
        rf"\1{MASK}",
    ),
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{12,}\b"), rf"\1{MASK}"),
    (re.compile(r"\b((?:set-)?cookie[\"']?\s{0,4}[:=]\s{0,4})[^\r\n]{4,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"://[^\s/]{1,512}@"), f"://{MASK}@"),
    (re.compile(r"\b(bearer|basic)\s{1,4}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{5,2048}\.[A-Za-z0-9_-]{2,4096}\.[A-Za-z0-9_-]{2,2048}"), MASK),
    (
        # Not after a colon: the ARN of a secret is not a secret.
        re.compile(
            # Nor is our own `token: expired`.
            r"((?:(?:api[_-]?key|passwd|password|pwd|(?<!:)secret|access[_-]?key|[a-z][_-]?token)[\"']?\s{0,4}[=:]"
            r"|token(?:[\"']\s{0,4}:|\s{0,4}=))\s{0,4}[\"']?)[^\s\"',;&{}]{4,}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
)


def hide(secret: str) -> None:
    """Mask this text from now on, and, if it is a URL, the password in it.

    No pattern matches every secret, and some servers quote the key that they refuse.
    """
    passwords = _PASSWORD.findall(secret)
    texts = (secret, *passwords, *map(unquote, passwords))
    _known.update(text for text in texts if len(text) >= _MIN_KNOWN_LENGTH)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact(value: Any, *, name: str = "", depth: int = 0) -> Any:
    """Return a copy of a log field with its secrets masked. Anything but plain data becomes text."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return MASK
    if isinstance(value, int | float):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(key): redact(item, name=str(key), depth=depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [redact(item, depth=depth + 1) for item in value]
    return redact_text(str(value))


def redact_text(text: str) -> str:
    """Mask known secrets, and text that looks like a key, a token or a password."""
    for secret in _known:
        text = text.replace(secret, MASK)
    for pattern, replacement in _SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text
