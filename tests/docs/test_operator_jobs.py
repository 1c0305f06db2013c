"""`make migrate` and `make turns`: jobs for the functions of a deployed stack."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from local.aws import Aws
from scripts import migrate, turns
from tests.docs.conftest import Answering, deployed_stack, with_outputs

ARN = "arn:aws:lambda:us-east-1:123456789012:function:{}:live"
SESSION = "60e0b861d82138b57108272c:trip"


@pytest.fixture(autouse=True)
def deployed(local_aws: Aws) -> Iterator[None]:
    template = with_outputs(SummaryFunction=ARN.format("summary"), RunFunction=ARN.format("run"))
    with deployed_stack("omniagent-dev", template):
        yield


def test_a_build_is_waited_for_until_it_is_done(answering: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    api = answering({"status": "building"}, {"status": "building"}, {"status": "indexed"})
    assert migrate.main() == 0
    assert len(api.asked) == 3
    assert api.asked[0].endswith('/invocations {"indexes": true}')
    assert "summary%3Alive" in api.asked[0]
    assert capsys.readouterr().out.endswith("All indexes of dev are built.\n")


def test_a_build_that_fails_fails_the_deploy(answering: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    answering({"errorMessage": "StorageConflict: duplicate key"})
    assert migrate.main() == 1
    assert "StorageConflict: duplicate key" in capsys.readouterr().err


def turn(message_id: str, state: str, since: str | None) -> dict[str, Any]:
    facts = {"session_id": SESSION, "message_id": message_id, "state": state, "since": since}
    return facts | {"category": None, "attempt": 0, "until": None, "id": f"{SESSION}/{message_id}"}


def test_turns_are_printed_with_the_longest_running_first(
    answering: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        turn("q1", "queued", None),
        turn("q2", "queued", None),
        turn("new", "running", "2026-11-16T09:00:00Z"),
        turn("old", "waiting", "2026-11-16T08:00:00.123Z"),
    ]
    api = answering({"status": "listed", "turns": found})
    assert turns.main() == 0
    assert api.asked[0].endswith('run%3Alive/invocations {"kind": "turns"}')
    printed = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2] for line in printed[1:-1]] == ["old", "new", "q1", "q2"]
    assert printed[-1].startswith("4 turns.")


@pytest.mark.parametrize(("status", "code"), [("stopped", 0), ("nothing", 1), ("not_found", 1)])
def test_a_stop_fails_if_there_is_nothing_to_stop(
    status: str, code: int, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOP", f"{SESSION}/old")
    api = answering({"status": status, "id": f"{SESSION}/old"})
    assert turns.main() == code
    assert api.asked[0].endswith(json.dumps({"kind": "stop", "id": f"{SESSION}/old"}))
