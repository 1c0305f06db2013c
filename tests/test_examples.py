"""The example of the README, run as its reader would."""

import os
import subprocess
import sys

from local.template import ROOT


def ask(question: str, mongodb_uri: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    done = subprocess.run(
        [sys.executable, "examples/chat.py", question],
        cwd=ROOT,
        env={**kept, "MONGODB_URI": mongodb_uri},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_second_run_remembers_the_first_and_tools_are_used(mongod: str) -> None:
    assert "Ada" in ask("My name is Ada.", mongod)
    assert "Ada" in ask("What is my name?", mongod)
    answer = ask("Multiply 17 by 23, and what is today's date?", mongod)
    assert "[it answered 391.0]" in answer
    assert "[calling today with {}]" in answer
