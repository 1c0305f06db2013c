"""How events and messages look in a terminal."""

import json
import os
import re
from typing import Any, TextIO

from local.chat.api import Json

DIM, RED, BOLD, RESET = "\x1b[2m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
LONGEST_VALUE = 200
# Output of a model or a tool must not contain terminal control sequences.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ABORTS = {
    "cancelled": "stopped",
    "deadline": "out of time",
    "interrupted": "interrupted",
    "unanswered": "not answered",
}


class View:
    """Prints a conversation."""

    def __init__(self, out: TextIO) -> None:
        """Print to `out`, coloured where that is a terminal."""
        self._out = out
        self._colourful = out.isatty() and not os.environ.get("NO_COLOR")
        self._in_line = False
        self._tools: dict[str, str] = {}

    def event(self, event: Json) -> None:
        """Show an event of a stream."""
        match event["type"]:
            case "text-delta":
                self._write(event["delta"])
            case "reasoning-delta":
                self._write(event["delta"], DIM)
            case "text-end" | "reasoning-end":
                self._end_line()
            case "tool-input-available":
                self._tools[event["toolCallId"]] = event["toolName"]
                self._tool(event, shortened(event["input"]))
            case "tool-output-available":
                self._tool(event, f"-> {shortened(event['output'])}")
            case "tool-output-denied":
                self._tool(event, "was denied", RED)
            case "tool-input-error" | "tool-output-error":
                self._tools.setdefault(event["toolCallId"], event.get("toolName", "tool"))
                self._tool(event, f"failed: {event['errorText']}", RED)
            case "abort":
                self.note(f"({_ABORTS.get(event['reason'], event['reason'])})")
            case "finish":
                self._finish(event.get("messageMetadata", {}))
            case "error":
                self.error(event["errorText"])

    def message(self, message: Json) -> None:
        """Show a stored message."""
        text = "".join(part["text"] for part in message["parts"] if part["type"] == "text")
        if message["role"] == "user":
            self._line(f"> {text}", BOLD)
        elif text:
            self._line(text)

    def say(self, text: str) -> None:
        """Show a line of what is asked."""
        self._line(text, BOLD)

    def note(self, text: str) -> None:
        """Say something about the conversation."""
        self._line(text, DIM)

    def error(self, text: str) -> None:
        """Say what went wrong."""
        self._line(text, RED)

    def _tool(self, event: Json, text: str, colour: str = DIM) -> None:
        self._line(f"  {self._tools.get(event['toolCallId'], 'tool')} {text}", colour)

    def _finish(self, metadata: Json) -> None:
        known = [f"{metadata['durationMs'] / 1000:.1f} s"] if "durationMs" in metadata else []
        # A stopped model call reports no tokens.
        if tokens := metadata.get("usage", {}).get("totalTokens"):
            known.append(f"{tokens} tokens")
        self.note(", ".join(known))

    def _line(self, text: str, colour: str = "") -> None:
        self._end_line()
        self._write(text, colour)
        self._end_line()

    def _end_line(self) -> None:
        if self._in_line:
            print(file=self._out, flush=True)
            self._in_line = False

    def _write(self, text: str, colour: str = "") -> None:
        if text:
            clean = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
            painted = f"{colour}{clean}{RESET}" if colour and self._colourful else clean
            print(painted, end="", file=self._out, flush=True)
            self._in_line = not text.endswith("\n")


def shortened(value: Any) -> str:
    """Return a value in one line that is not too long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_VALUE else f"{line[:LONGEST_VALUE]}..."
