"""`python -m local chat` in a real terminal."""

import sys
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from local.__main__ import main
from local.background import BackgroundStack
from tests.local.terminal import INTERRUPT, Terminal, terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the terminal is looked at through /proc")

PROMPT = "\n> "
STALLED = "[stall] [long:40]"


@pytest.fixture
def http(stack: BackgroundStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def chat(stack: BackgroundStack) -> Iterator[Terminal]:
    """A terminal that every test leaves at its prompt."""
    with terminal("chat", "--url", stack.url) as running:
        running.read_until(PROMPT)
        yield running


@pytest.fixture
def session_id(chat: Terminal) -> str:
    """The session that the terminal has begun for this test."""
    return say(chat, "/new").partition("Session ")[2].partition(". ")[0]


def say(chat: Terminal, text: str) -> str:
    """Type a line, and return what is printed up to the next prompt."""
    chat.type(f"{text}\n")
    return chat.read_until(PROMPT)


@pytest.mark.usefixtures("session_id")
def test_a_question_is_answered_and_its_tool_shown(chat: Terminal) -> None:
    answer = say(chat, "What is 21 * 2?")
    assert (
        '\n  calculator {"expression": "21 * 2"}\n  calculator -> 42\nThe **calculator** tool answered: 42\n' in answer
    )
    assert " tokens\n" in answer


def test_a_pasted_block_is_one_message(chat: Terminal, http: httpx.Client, session_id: str) -> None:
    assert chat.marks_pastes
    shown = say(chat, "\x1b[200~[echo:First line.\n\nSecond line.]\nThird line.\x1b[201~")
    assert "\nFirst line.\n\nSecond line.\n" in shown
    said, _ = http.get(f"/sessions/{session_id}/messages").json()["messages"]
    assert said["parts"][0]["text"] == "[echo:First line.\n\nSecond line.]\nThird line."


def test_an_interrupt_stops_the_turn_on_the_server_and_keeps_its_text(
    chat: Terminal, http: httpx.Client, session_id: str
) -> None:
    chat.type(f"{STALLED}\n")
    shown = chat.read_until("every token")
    chat.type(INTERRUPT)
    shown += chat.read_until("(stopped)")
    chat.read_until(PROMPT)
    _, answer = http.get(f"/sessions/{session_id}/messages").json()["messages"]
    assert answer["metadata"]["status"] == "cancelled"
    [text] = [part["text"] for part in answer["parts"] if part["type"] == "text"]
    assert text in shown.replace("^C", "")
    assert "\nGo on.\n" in say(chat, "[echo:Go on.]")


def test_the_chat_resumes_a_running_answer_and_ends_by_command_or_interrupts(
    stack: BackgroundStack, http: httpx.Client
) -> None:
    session_id = uuid4().hex
    with http.stream("POST", "/chat", json={"session_id": session_id, "query": STALLED}) as answer:
        next(answer.iter_bytes())
    with terminal("chat", "--url", stack.url, "--session", session_id) as chat:
        shown = chat.read_until("every token")
        assert f"> {STALLED}\nThe stream keeps" in shown
        chat.type(INTERRUPT)
        chat.read_until("(stopped)")
        chat.read_until(PROMPT)
        chat.type("/quit\n")
        assert chat.exit_code() == 0
    with terminal("chat", "--url", stack.url, "--session", session_id) as chat:
        chat.read_until(f"> {STALLED}\nThe stream keeps")
        chat.read_until(PROMPT)
        chat.wait_until_it_reads()
        chat.type(INTERRUPT)
        chat.read_until("(press Ctrl-C again to quit)\n> ")
        chat.wait_until_it_reads()
        chat.type(INTERRUPT)
        assert chat.exit_code() == 130


def test_the_last_question_is_answered_again(chat: Terminal, http: httpx.Client, session_id: str) -> None:
    for text in ("[echo:Once.]", "/regenerate"):
        assert "\nOnce.\n" in say(chat, text)
    assert http.get(f"/sessions/{session_id}").json()["latestTurnNumber"] == 1


def test_sessions_are_listed_opened_and_begun(chat: Terminal, session_id: str) -> None:
    say(chat, "[echo:Here.]")
    assert session_id not in say(chat, "/new")
    listed = say(chat, "/sessions")
    number = next(line.split()[0] for line in listed.splitlines() if session_id in line)
    opened = say(chat, f"/open {number}")  # up to the mark of what was asked
    assert f"Session {session_id}" in opened
    chat.read_until("\nHere.\n")
    chat.read_until(PROMPT)


@pytest.mark.usefixtures("session_id")
def test_refusals_reasoning_and_failures_are_shown(chat: Terminal) -> None:
    missing = "It does not exist, or you have no access to it."
    assert say(chat, "/regenerate") == f"/regenerate\n{missing}{PROMPT}"
    assert f"Unknown command /unknown. /help lists the commands.{PROMPT}" in say(chat, "/unknown")
    shown = say(chat, '[reason] [tool:calculator {"expression": "1 / 0"}]')
    assert "**Reading the request**" in shown
    assert "\n  calculator failed: " in shown
    assert f"\nThe model could not answer. Try again in a moment.{PROMPT}" in say(chat, "[fail:500]")


def test_without_a_stack_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORT", "1")
    assert main(["chat"]) == 1
    assert capsys.readouterr() == ("", "No server responds at http://127.0.0.1:1. Start it with `make run`.\n")


def test_what_a_turn_waits_for_is_asked_and_a_paste_is_no_approval(waiting_stack: BackgroundStack) -> None:
    ask = '[tool:refund {"order": "42"}] [tool:ask_user {"question": "Which?", "choices": ["red", "blue"]}]'
    with terminal("chat", "--url", waiting_stack.url) as chat:
        chat.read_until(PROMPT)
        chat.type(f"{ask} [then] [echo:All done.]\n")
        chat.read_until('refund {"order": "42"} needs your approval. Order 42 is large.\n')
        chat.read_until("an optional reason: ")
        chat.type("\x1b[200~y\nand more\x1b[201~\n")
        chat.read_until("an optional reason: ")
        chat.type(INTERRUPT)
        chat.read_until("another message closes it)\n> ")
        chat.type("/answer\n")
        chat.read_until("an optional reason: ")
        chat.type("n too much\n")
        chat.read_until("Which?\n  1  red\n  2  blue\n")
        chat.read_until("/skip: ")
        chat.type("2\n")
        shown = chat.read_until("\nAll done.\n")
        assert "refund was denied" in shown
        assert "ask_user -> blue" in shown
