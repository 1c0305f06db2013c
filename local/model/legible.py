"""What the model reads of a text that somebody sent, however long and strange that is.

Its expressions look at every character many times, on the one thread that answers everybody. They get a text of bounded
length without endless runs: none of them then takes long. What is counted, echoed and sent is the text itself.
"""

import re

READ_CHARS = 3_000
"""As much of the beginning of a text, and a third of it from its end."""
_LONG_WORD = re.compile(r"(\w{200})\w+")
_LONG_GAP = re.compile(r"(\W{8})\W+")


def legible(text: str) -> str:
    """Return the text with its long runs cut, and then its beginning and its end."""
    if len(text) > 100 * READ_CHARS:
        text = text[: 50 * READ_CHARS] + text[-50 * READ_CHARS :]
    text = _LONG_GAP.sub(r"\1", _LONG_WORD.sub(r"\1", text))
    if len(text) <= READ_CHARS + READ_CHARS // 3:
        return text
    return f"{text[:READ_CHARS]} … {text[-READ_CHARS // 3 :]}"
