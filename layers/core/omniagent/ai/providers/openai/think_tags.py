"""Reasoning that a server sends as text in `<think>` tags, because it has no parser for its model."""

from collections.abc import Iterator
from typing import Final, Literal

ThinkTagsMode = Literal["both", "closing"]
"""`both`: the answer may begin with `<think>`. `closing`: the template has opened it, so only `</think>` comes."""
_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"


class ThinkTags:
    """Splits the text of one answer. Only tags at its beginning count: later ones are what the answer is about."""

    def __init__(self, mode: ThinkTagsMode) -> None:
        self._state: Literal["before", "inside", "text"] = "before" if mode == "both" else "inside"
        self._held = ""
        """Text that may be a part of a tag."""
        self._strips = False
        """Whether the space after a tag is still to be dropped."""

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yield the pieces of the answer so far, each with whether it is reasoning."""
        text, self._held = self._held + text, ""
        if self._state == "before":
            text = self._opened(text)
        if self._state == "inside":
            thought, closing, text = text.partition(_CLOSING)
            if not closing:
                self._held = _start_of_tag(thought)
            if thought := self._stripped(thought[: len(thought) - len(self._held)]):
                yield True, thought
            if closing:
                self._state, self._strips = "text", True
        if self._state == "text" and (text := self._stripped(text)):
            yield False, text

    def flush(self) -> Iterator[tuple[bool, str]]:
        """Yield what was held back: no tag follows."""
        held, self._held = self._held, ""
        if held:
            yield self._state == "inside", held
        if self._state == "before":
            self._state = "text"

    def _stripped(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def _opened(self, text: str) -> str:
        """Return the text after the opening tag, or all of it if there is none. Empty while that is not known."""
        start = text.lstrip()
        if start.startswith(_OPENING):
            self._state, self._strips = "inside", True
            return start[len(_OPENING) :]
        if _OPENING.startswith(start):
            self._held = text
            return ""
        self._state = "text"
        return text


def _start_of_tag(text: str) -> str:
    """Return the end of a text that may be the start of a closing tag."""
    lengths = range(min(len(text), len(_CLOSING) - 1), 0, -1)
    return next((text[-length:] for length in lengths if _CLOSING.startswith(text[-length:])), "")
