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

STALLED = "[stall] [long:40]"


@pytest.fixture
def http(stack: BackgroundStack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def chat(stack: BackgroundStack) -> Iterator[Terminal]:
    """A terminal that every test leaves at its prompt."""
    with terminal("chat", "--url", stack.url) as running:
        running.read_until("\n> ")
        yield running


@pytest.fixture
def session_id(chat: Terminal) -> str:
    """The session that the terminal has begun for this test."""
    chat.type("/new\n")
    chat.read_until("Session ")
    opened = chat.read_until(". ").removesuffix(". ")
    chat.read_until("\n> ")
    return opened


@pytest.mark.usefixtures("session_id")
def test_a_question_is_answered_and_its_tool_shown(chat: Terminal) -> None:
    chat.type("What is 21 * 2?\n")
    answer = chat.read_until("\n> ")
    assert (
        '\n  calculator {"expression": "21 * 2"}\n  calculator -> 42\nThe **calculator** tool answered: 42\n' in answer
    )
    assert " tokens\n" in answer


def test_a_pasted_block_is_one_message(chat: Terminal, http: httpx.Client, session_id: str) -> None:
    assert chat.marks_pastes
    chat.type("\x1b[200~[echo:First line.\n\nSecond line.]\nThird line.\x1b[201~\n")
    chat.read_until("\nFirst line.\n\nSecond line.\n")
    chat.read_until("\n> ")
    said, _ = http.get(f"/sessions/{session_id}/messages").json()["messages"]
    assert said["parts"][0]["text"] == "[echo:First line.\n\nSecond line.]\nThird line."


def test_an_interrupt_stops_the_turn_on_the_server_and_keeps_its_text(
    chat: Terminal, http: httpx.Client, session_id: str
) -> None:
    chat.type(f"{STALLED}\n")
    shown = chat.read_until("every token")
    chat.type(INTERRUPT)
    shown += chat.read_until("(stopped)")
    chat.read_until("\n> ")
    _, answer = http.get(f"/sessions/{session_id}/messages").json()["messages"]
    assert answer["metadata"]["status"] == "cancelled"
    [text] = [part["text"] for part in answer["parts"] if part["type"] == "text"]
    assert text in shown.replace("^C", "")
    chat.type("[echo:Go on.]\n")
    chat.read_until("\nGo on.\n")
    chat.read_until("\n> ")


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
        chat.read_until("\n> ")
        chat.type("/quit\n")
        assert chat.exit_code() == 0
    with terminal("chat", "--url", stack.url, "--session", session_id) as chat:
        chat.read_until(f"> {STALLED}\nThe stream keeps")
        chat.read_until("\n> ")
        chat.wait_until_it_reads()
        chat.type(INTERRUPT)
        chat.read_until("(press Ctrl-C again to quit)\n> ")
        chat.wait_until_it_reads()
        chat.type(INTERRUPT)
        assert chat.exit_code() == 130


def test_the_last_question_is_answered_again(chat: Terminal, http: httpx.Client, session_id: str) -> None:
    chat.type("[echo:Once.]\n")
    chat.read_until("\nOnce.\n")
    chat.read_until("\n> ")
    chat.type("/regenerate\n")
    chat.read_until("\nOnce.\n")
    chat.read_until("\n> ")
    assert http.get(f"/sessions/{session_id}").json()["latestTurnNumber"] == 1


def test_sessions_are_listed_opened_and_begun(chat: Terminal, session_id: str) -> None:
    chat.type("[echo:Here.]\n")
    chat.read_until("\nHere.\n")
    chat.read_until("\n> ")
    chat.type("/new\n")
    assert session_id not in chat.read_until("\n> ")
    chat.type("/sessions\n")
    listed = chat.read_until("\n> ")
    number = next(line.split()[0] for line in listed.splitlines() if session_id in line)
    chat.type(f"/open {number}\n")
    opened = chat.read_until("\nHere.\n")
    assert f"Session {session_id}" in opened
    chat.read_until("\n> ")


@pytest.mark.usefixtures("session_id")
def test_what_the_server_refuses_is_shown_in_its_words(chat: Terminal) -> None:
    chat.type("/regenerate\n")
    shown = chat.read_until("\n> ")
    assert shown == "/regenerate\nIt does not exist, or you have no access to it.\n> "
    chat.type("/unknown\n")
    chat.read_until("Unknown command /unknown. /help lists the commands.\n> ")


@pytest.mark.usefixtures("session_id")
def test_reasoning_and_failures_are_shown(chat: Terminal) -> None:
    chat.type('[reason] [tool:calculator {"expression": "1 / 0"}]\n')
    shown = chat.read_until("\n> ")
    assert "**Reading the request**" in shown
    assert "\n  calculator failed: " in shown
    chat.type("[fail:500]\n")
    chat.read_until("\nThe model could not answer. Try again in a moment.\n> ")


def test_without_a_stack_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORT", "1")
    assert main(["chat"]) == 1
    assert capsys.readouterr() == ("", "No server responds at http://127.0.0.1:1. Start it with `make run`.\n")


def test_what_a_turn_waits_for_is_asked_and_a_paste_is_no_approval(waiting_stack: BackgroundStack) -> None:
    ask = '[tool:refund {"order": "42"}] [tool:ask_user {"question": "Which?", "choices": ["red", "blue"]}]'
    with terminal("chat", "--url", waiting_stack.url) as chat:
        chat.read_until("\n> ")
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
