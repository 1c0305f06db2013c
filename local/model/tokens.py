"""The offline model's own tokens: a word or a sign, with the space before it.

The count is exact by construction: it is the number of pieces the text is streamed in.
"""

import re

_PIECE = re.compile(r"\s*(?:\w{1,12}|[^\w\s])|\s+")


def split(text: str) -> list[str]:
    """Cut a text into tokens that join to the same text again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    return len(split(text))


def cut(text: str, limit: int) -> str:
    """Keep the first `limit` tokens."""
    return "".join(split(text)[: max(limit, 0)])
