"""The requests of a waiting turn, at the terminal."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from local.chat.api import Json
from local.chat.view import View, shortened

YES, NO = {"y", "yes"}, {"n", "no"}
SKIP = "/skip"
UNANSWERED = "The user did not answer."


def pending(message: Json) -> list[Json]:
    """Return the open calls of a stored answer."""
    if message.get("metadata", {}).get("status") != "waiting":
        return []
    return [part for part in message["parts"] if part.get("state") in {"approval-requested", "input-available"}]


class Requests:
    """Asks the user and converts the input to answers for the API."""

    def __init__(self, view: View) -> None:
        """Show the requests here."""
        self._view = view

    def answers(self, message: Json) -> Iterator[Json]:
        """Ask for all open requests of the answer. Ctrl-C and Ctrl-D leave the rest unanswered."""
        for part in pending(message):
            name = part["type"].removeprefix("tool-")
            arguments = part.get("input") or {}
            if part["state"] == "approval-requested":
                answer = self._approval(name, arguments, part["approval"].get("requestReason", ""))
            elif name == "ask_user":
                answer = self._question(str(arguments.get("question", "")), arguments.get("choices") or [])
            else:
                answer = self._output(name, arguments)
            yield {"tool_call_id": part["toolCallId"], **answer}

    def _approval(self, name: str, arguments: Any, why: str) -> Json:
        self._view.say(f"{name} {shortened(arguments)} needs your approval. {why}".rstrip())
        while True:
            verdict, _, reason = self._read("Approve? y or n, and an optional reason: ").partition(" ")
            # A pasted block is not a verdict, whatever it begins with.
            if verdict.lower() in YES | NO and "\n" not in reason:
                return {"approved": verdict.lower() in YES} | ({"reason": reason.strip()} if reason.strip() else {})

    def _question(self, question: str, choices: list[str]) -> Json:
        self._view.say(question)
        for number, choice in enumerate(choices, 1):
            self._view.say(f"{number:>3}  {choice}")
        while True:
            text = self._read(f"Your {'choice' if choices else 'answer'}, or {SKIP}: ")
            if text == SKIP:
                return {"error": UNANSWERED}
            if choices and text.isascii() and text.isdigit() and 0 < int(text) <= len(choices):
                return {"output": choices[int(text) - 1]}
            if text and (not choices or text in choices):
                return {"output": text}

    def _output(self, name: str, arguments: Any) -> Json:
        self._view.say(f"{name} {shortened(arguments)} runs in the client.")
        text = self._read(f"Its output as JSON or text, or {SKIP}: ")
        if text == SKIP:
            return {"error": "The client could not run it."}
        try:
            return {"output": json.loads(text)}
        except ValueError:
            return {"output": text}

    def _read(self, prompt: str) -> str:
        _forget_typed()
        return input(prompt).strip()


def _forget_typed() -> None:
    """Discard input typed or pasted before the question was shown."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError, OSError):
            import termios

            termios.tcflush(sys.stdin, termios.TCIFLUSH)
