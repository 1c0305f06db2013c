"""Every file in events/, invoked in the order of its README: one session's story, told as `make invoke` tells it."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import pytest

from local.aws import Aws
from local.model import OfflineModel
from local.template import ROOT
from omniagent.app.run_jobs import InvokedJob
from omniagent.protocol import sse
from tests.fixtures.calls import Json
from tests.fixtures.product import running_product
from tests.fixtures.stream import check_order

EVENTS = ROOT / "events"
ROW = re.compile(r"^\| \d+ \| \[([\w-]+)\.json\]\(\1\.json\) \| (\w+) \| (.+) \|$", re.MULTILINE)
# The file's name, its function, and what the README says comes back.
STORY = ROW.findall((EVENTS / "README.md").read_text())
SESSION = "lisbon-trip-01"
KEY = json.loads((EVENTS / "summary-direct.json").read_text())["session_id"]


@pytest.fixture(scope="module")
async def story(mongod: str, cloud: Aws, model: OfflineModel) -> dict[str, Json]:
    """The answer to each event. The queue is left alone, so that only the story's own events act."""
    answers: dict[str, Json] = {}
    environment = {"AWS_SAM_LOCAL": "true"}
    functions = ("chat", "sessions", "summary", "run")
    async with running_product(
        mongod, cloud, model, environment=environment, functions=functions, emulator={"sqs": None}
    ) as product:
        for name, function, _ in STORY:
            result = await product.emulator.invoke(function, (EVENTS / f"{name}.json").read_bytes())
            assert result.error_type is None, (name, result.payload)
            answers[name] = json.loads(result.payload)
            await product.emulator.settled()
    return answers


Check = Json | Callable[[Json], None]
"""What must be in the answer's JSON body, or more than that."""


def body_of(answer: Json) -> Any:
    return json.loads(answer["body"])


def check_turn(number: int, tells: str = "", **expected: Any) -> Callable[[Json], None]:
    """The answer is a whole stream that ends the given turn."""

    def check(answer: Json) -> None:
        assert answer["headers"]["x-vercel-ai-ui-message-stream"] == "v1"
        assert "data: [DONE]\n" in answer["body"][-100:]
        assert tells in answer["body"]
        events = list(sse.decode(answer["body"].encode()))
        check_order(events)
        told = events[-1]["data"]
        assert told | {"sessionId": SESSION, "turnNumber": number, "status": "complete"} | expected == told

    return check


def check_problem(code: str) -> Callable[[Json], None]:
    def check(answer: Json) -> None:
        assert answer["headers"]["content-type"] == "application/problem+json"
        assert body_of(answer)["code"] == code

    return check


def exactly(expected: Json) -> Callable[[Json], None]:
    def check(answer: Json) -> None:
        assert body_of(answer) == expected

    return check


def check_tree(answer: Json) -> None:
    tree = body_of(answer)
    nodes = [each["message"]["id"] for each in tree["messages"]]
    assert tree["headId"] in nodes
    assert all(each["parentId"] in (None, *nodes) for each in tree["messages"])


def check_messages(answer: Json) -> None:
    assert [message["role"] for message in body_of(answer)["messages"]] == ["user", "assistant"] * 5


def check_name(answer: Json) -> None:
    assert body_of(answer)["name"] not in (None, "Lisbon in November")


def check_waiting(answer: Json) -> None:
    assert '"type":"tool-approval-request"' in answer["body"]


def check_empty(answer: Json) -> None:
    assert not answer.get("body")


def check_contained(expected: Any, found: Any) -> None:
    """What is expected is in what was found. Lists have as many items."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for each, item in zip(expected, found, strict=True):
            check_contained(each, item)
    elif isinstance(expected, dict):
        for name, value in expected.items():
            check_contained(value, found[name])
    else:
        assert found == expected


MISSING, UNKNOWN = (404, check_problem("not_found")), (404, check_problem("unknown_request"))
REFUND = {"tool": "refund", "input": {"order": 1001, "euros": 80}, "sessionId": "lisbon-refund-02"}
OVER_HTTP: Mapping[str, tuple[int, Check]] = {
    "sessions-create": (201, {"id": SESSION, "name": "Trip to Lisbon", "latestTurnNumber": 0}),
    "chat-hello": (200, check_turn(1, userMessageId="msg-hello-01", name="Trip to Lisbon")),
    "chat-tool": (200, check_turn(2, tells='"type":"tool-output-available"')),
    "chat-plain": (200, check_turn(3, userMessageId="msg-museum-03")),
    "chat-message": (200, check_turn(4, userMessageId="msg-food-04")),
    "chat-buffered": (200, {"sessionId": SESSION, "status": "complete", "message": {"role": "assistant"}}),
    "chat-regenerate": (200, check_turn(5)),
    "chat-resume": (200, check_turn(5)),
    "chat-bad-json": (400, check_problem("malformed_request")),
    "chat-invalid": (422, check_problem("invalid_request")),
    "sessions-list": (200, {"sessions": [{"id": SESSION}]}),
    "sessions-get": (200, {"id": SESSION, "latestTurnNumber": 5, "answering": False}),
    "sessions-rename": (200, {"id": SESSION, "name": "Lisbon in November"}),
    "sessions-messages": (200, check_messages),
    "sessions-tree": (200, check_tree),
    "sessions-branch": MISSING,
    "sessions-feedback": MISSING,
    "sessions-feedback-delete": MISSING,
    "sessions-delete-message": (204, check_empty),
    "sessions-cancel": (409, check_problem("no_running_turn")),
    "sessions-name": (200, check_name),
    "sessions-usage": (200, exactly({"requestsPerMinute": None, "tokensPerDay": None, "agents": {}})),
    "sessions-summary-queue": (202, exactly({"sessionId": SESSION, "accepted": "summary"})),
    # The last turn may be answered again.
    "sessions-summary-get": (200, {"startTurnNumber": 1, "endTurnNumber": 4}),
    "chat-approval": (200, check_waiting),
    "sessions-approvals": (200, {"approvals": [REFUND]}),
    "chat-decide": UNKNOWN,
    "chat-replies": UNKNOWN,
    "chat-replied": UNKNOWN,
    "chat-background": (202, {"sessionId": SESSION, "messageId": "msg-packing-06"}),
    "sessions-not-found": MISSING,
    "sessions-delete": (204, check_empty),
    "sessions-delete-user": (204, check_empty),
}
INVOKED: Mapping[str, Json] = {
    "run-turns": {"status": "listed", "turns": []},
    "run-stop": {"status": "nothing", "id": KEY},
    "run-sweep": {"status": "swept", "sessions": 0, "events": 0},
    "run-session": {"status": "ran"},
    "run-webhook": {"status": "dropped", "event": "evt_2b1f0c0c5d1f4a7e9a3d6c8b0e5f7a91"},
    "run-sqs-batch": {"batchItemFailures": []},
    "run-schedule": {"status": "accepted"},
    "run-schedule-sqs": {"batchItemFailures": []},
    "run-erase": {"status": "erased", "id": KEY.replace(SESSION, "lisbon-refund-02")},
    "summary-indexes": {"status": "indexed"},
    "summary-model-ends": {"status": "checked", "ending": []},
    "summary-direct": {"session_id": KEY, "status": "summarized", "end_turn_number": 4},
    "summary-sqs-batch": {"batchItemFailures": []},
    "summary-poisoned": {"batchItemFailures": [{"itemIdentifier": "fccbfeb7-e568-5c1c-b740-c9678bff9534"}]},
}


@pytest.mark.parametrize(("name", "function", "said"), STORY, ids=[name for name, _, _ in STORY])
def test_an_event_is_answered_as_the_readme_says(name: str, function: str, said: str, story: dict[str, Json]) -> None:
    answer = story[name]
    if name in INVOKED:
        assert answer == INVOKED[name]
        return
    status, check = OVER_HTTP[name]
    if name == "chat-resume" and answer["statusCode"] == 204:
        return  # on a very slow machine the turn before has ended too long ago
    assert answer["statusCode"] == status
    assert str(status) in said or function == "chat"
    if isinstance(check, dict):
        check_contained(check, body_of(answer))
    else:
        check(answer)


def test_every_event_is_part_of_the_story() -> None:
    assert sorted(name for name, _, _ in STORY) == sorted(path.stem for path in EVENTS.glob("*.json"))
    assert {name for name, _, _ in STORY} == OVER_HTTP.keys() | INVOKED.keys()


def test_every_kind_of_run_job_has_an_event() -> None:
    jobs = get_args(get_args(InvokedJob)[0])
    kinds = {kind for job in jobs for kind in get_args(job.model_fields["kind"].annotation)}
    events = [json.loads(path.read_text()) for path in EVENTS.glob("run-*.json")]
    assert kinds == {event["kind"] for event in events if "kind" in event}
