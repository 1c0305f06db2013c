"""`python -m local chat`: a conversation in the terminal."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from uuid import uuid4

from local.chat.api import ApiError, ChatApi, Json, NoAnswer
from local.chat.requests import Requests, pending
from local.chat.turn import INTERRUPTED, ShownTurn
from local.chat.view import View
from local.places import command
from local.processes import ServiceError

HELP = """/new         start another session
/sessions    list the sessions
/open N      continue a session from that list
/regenerate  answer the last message again
/answer      answer the last turn's request
/quit        quit (Ctrl-D)
Ctrl-C       stop the answer; twice: quit"""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("chat", help="chat in the terminal")
    here = f"http://127.0.0.1:{os.environ.get('PORT') or 8000}"
    running = f"the running `{command('run')}`"
    parser.add_argument("--url", default=here, help=f"URL of the chat function; default: {running}")
    parser.add_argument("--sessions-url", default="", help="URL of the sessions function, if it differs")
    parser.add_argument(
        "--token", default=os.environ.get("OMNIAGENT_TOKEN", ""), help="bearer token; default: $OMNIAGENT_TOKEN"
    )
    parser.add_argument("--session", default="", help="id of a session to continue")
    parser.set_defaults(run=run, here=here)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    _edit_lines()
    with ChatApi(arguments.url, arguments.sessions_url, token=arguments.token) as api:
        conversation = Conversation(api, View(sys.stdout))
        try:
            conversation.open(arguments.session)
        except NoAnswer as error:
            is_here = arguments.url == arguments.here
            advice = f"No server responds at {arguments.url}. Start it with `{command('run')}`."
            raise ServiceError(advice if is_here else str(error)) from None
        except ApiError as error:
            raise ServiceError(str(error)) from None
        return conversation.hold()


def _edit_lines() -> None:
    """Turn on history and line editing where Python has them, and have a pasted block be one message."""
    with contextlib.suppress(ImportError):
        import readline

        # Python turns it off for the sake of its own prompt. Without it each line of a paste would be sent.
        readline.parse_and_bind("set enable-bracketed-paste on")


class Conversation:
    """Reads questions and commands, shows answers."""

    def __init__(self, api: ChatApi, view: View) -> None:
        """Begin with no session."""
        self._api = api
        self._view = view
        self._requests = Requests(view)
        self._session_id = ""
        self._listed: list[Json] = []
        self._commands: dict[str, Callable[[str], object]] = {
            "/answer": lambda _: self._answer_requests(),
            "/help": lambda _: self._view.note(HELP),
            "/new": lambda _: self.open(),
            "/open": self._open_listed,
            "/regenerate": lambda _: self._show(self._api.regenerate(self._session_id)),
            "/sessions": lambda _: self._list(),
        }

    def open(self, session_id: str = "") -> None:
        """Open a session and follow its running answer, or start a new session."""
        # Always called: it also checks that there is a server.
        self._listed = self._api.sessions()
        self._session_id = session_id or uuid4().hex
        self._view.note(f"Session {self._session_id}. /help lists the commands.")
        if session_id:
            messages = self._api.messages(session_id)
            for message in messages[:1]:
                self._view.message(message)
            if not self._show(self._api.resume(session_id)):
                for message in messages[1:]:
                    self._view.message(message)
                if any(map(pending, messages)):
                    self._view.note("The last turn is waiting for you: /answer.")

    def hold(self) -> int:
        """Chat until the user quits. Return the exit code."""
        interrupted = False
        while True:
            try:
                line = input("> ").strip()
                interrupted = False
                if line in {"/quit", "/exit"}:
                    return 0
                self._answer(line)
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print()
                if interrupted:
                    return INTERRUPTED
                interrupted = True
                self._view.note("(press Ctrl-C again to quit)")

    def _answer(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        try:
            if name in self._commands:
                self._commands[name](argument.strip())
            elif name.startswith("/"):
                self._view.error(f"Unknown command {name}. /help lists the commands.")
            elif line:
                self._show(self._api.ask(self._session_id, line))
        except ApiError as error:
            self._view.error(str(error))

    def _show(self, events: Iterator[Json], *, asks: bool = True) -> bool:
        turn = ShownTurn(self._api, self._view, self._session_id)
        is_shown = turn.show(events)
        if turn.is_waiting and asks:
            self._answer_requests()
        return is_shown

    def _answer_requests(self) -> None:
        waiting = [message for message in self._api.messages(self._session_id) if pending(message)]
        if not waiting:
            self._view.note("No request is waiting for an answer.")
            return
        answers: list[Json] = []
        is_left = False
        try:
            for answer in self._requests.answers(waiting[-1]):
                answers.append(answer)  # noqa: PERF402 - those before an interrupt are kept
        except (EOFError, KeyboardInterrupt):
            is_left = True
            print()
        if answers:
            self._show(self._api.answer(self._session_id, waiting[-1]["id"], answers), asks=not is_left)
        if is_left:
            self._view.note("(waiting: /answer continues it, another message closes it)")

    def _list(self) -> None:
        self._listed = self._api.sessions()
        for number, session in enumerate(self._listed, 1):
            mark = "*" if session["id"] == self._session_id else " "
            self._view.note(f"{mark}{number:>3}  {session['name'] or 'unnamed'}  {session['id']}")

    def _open_listed(self, number: str) -> None:
        if number.isdigit() and 0 < int(number) <= len(self._listed):
            self.open(self._listed[int(number) - 1]["id"])
        else:
            self._view.error("Enter a number from /sessions.")
