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


def body_of(answer: Json) -> Any:
    return json.loads(answer["body"])


def check_turn(number: int, **expected: Any) -> Callable[[Json], None]:
    """The answer is a whole stream that ends the given turn."""

    def check(answer: Json) -> None:
        assert answer["headers"]["x-vercel-ai-ui-message-stream"] == "v1"
        assert "data: [DONE]\n" in answer["body"][-100:]
        events = list(sse.decode(answer["body"].encode()))
        check_order(events)
        told = events[-1]["data"]
        assert told | {"sessionId": SESSION, "turnNumber": number, "status": "complete"} | expected == told

    return check


def check_tool_turn(answer: Json) -> None:
    check_turn(2)(answer)
    assert '"type":"tool-output-available"' in answer["body"]


def check_document(answer: Json) -> None:
    told = body_of(answer)
    assert (told["sessionId"], told["status"], told["message"]["role"]) == (SESSION, "complete", "assistant")
    assert told["text"]


def check_session(**expected: Any) -> Callable[[Json], None]:
    def check(answer: Json) -> None:
        session = body_of(answer)
        assert session | {"id": SESSION} | expected == session

    return check


def check_code(code: str) -> Callable[[Json], None]:
    def check(answer: Json) -> None:
        assert answer["headers"]["content-type"] == "application/problem+json"
        assert body_of(answer)["code"] == code

    return check


def check_list(answer: Json) -> None:
    assert [session["id"] for session in body_of(answer)["sessions"]] == [SESSION]


def check_tree(answer: Json) -> None:
    tree = body_of(answer)
    nodes = [each["message"]["id"] for each in tree["messages"]]
    assert tree["headId"] in nodes
    assert all(each["parentId"] in (None, *nodes) for each in tree["messages"])


def check_messages(answer: Json) -> None:
    assert [message["role"] for message in body_of(answer)["messages"]] == ["user", "assistant"] * 5


def check_name(answer: Json) -> None:
    assert body_of(answer)["name"] not in (None, "Lisbon in November")


def check_accepted(answer: Json) -> None:
    assert body_of(answer) == {"sessionId": SESSION, "accepted": "summary"}


def check_usage(answer: Json) -> None:
    assert body_of(answer) == {"requestsPerMinute": None, "tokensPerDay": None, "agents": {}}


def check_summary(answer: Json) -> None:
    summary = body_of(answer)
    # The last turn may be answered again.
    assert (summary["startTurnNumber"], summary["endTurnNumber"]) == (1, 4)


def check_waiting(answer: Json) -> None:
    assert '"type":"tool-approval-request"' in answer["body"]


def check_approvals(answer: Json) -> None:
    [approval] = body_of(answer)["approvals"]
    assert (approval["tool"], approval["input"], approval["sessionId"]) == (
        "refund",
        {"order": 1001, "euros": 80},
        "lisbon-refund-02",
    )


def check_background(answer: Json) -> None:
    assert body_of(answer) | {"sessionId": SESSION, "messageId": "msg-packing-06"} == body_of(answer)


def check_empty(answer: Json) -> None:
    assert not answer.get("body")


OVER_HTTP: Mapping[str, tuple[int, Callable[[Json], None]]] = {
    "sessions-create": (201, check_session(name="Trip to Lisbon", latestTurnNumber=0)),
    "chat-hello": (200, check_turn(1, userMessageId="msg-hello-01", name="Trip to Lisbon")),
    "chat-tool": (200, check_tool_turn),
    "chat-plain": (200, check_turn(3, userMessageId="msg-museum-03")),
    "chat-message": (200, check_turn(4, userMessageId="msg-food-04")),
    "chat-buffered": (200, check_document),
    "chat-regenerate": (200, check_turn(5)),
    "chat-resume": (200, check_turn(5)),
    "chat-bad-json": (400, check_code("malformed_request")),
    "chat-invalid": (422, check_code("invalid_request")),
    "sessions-list": (200, check_list),
    "sessions-get": (200, check_session(latestTurnNumber=5, answering=False)),
    "sessions-rename": (200, check_session(name="Lisbon in November")),
    "sessions-messages": (200, check_messages),
    "sessions-tree": (200, check_tree),
    "sessions-branch": (404, check_code("not_found")),
    "sessions-feedback": (404, check_code("not_found")),
    "sessions-feedback-delete": (404, check_code("not_found")),
    "sessions-delete-message": (204, check_empty),
    "sessions-cancel": (409, check_code("no_running_turn")),
    "sessions-name": (200, check_name),
    "sessions-usage": (200, check_usage),
    "sessions-summary-queue": (202, check_accepted),
    "sessions-summary-get": (200, check_summary),
    "chat-approval": (200, check_waiting),
    "sessions-approvals": (200, check_approvals),
    "chat-decide": (404, check_code("unknown_request")),
    "chat-replies": (404, check_code("unknown_request")),
    "chat-replied": (404, check_code("unknown_request")),
    "chat-background": (202, check_background),
    "sessions-not-found": (404, check_code("not_found")),
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
    check(answer)


def test_every_event_is_part_of_the_story() -> None:
    assert sorted(name for name, _, _ in STORY) == sorted(path.stem for path in EVENTS.glob("*.json"))
    assert {name for name, _, _ in STORY} == OVER_HTTP.keys() | INVOKED.keys()


def test_every_kind_of_run_job_has_an_event() -> None:
    jobs = get_args(get_args(InvokedJob)[0])
    kinds = {kind for job in jobs for kind in get_args(job.model_fields["kind"].annotation)}
    events = [json.loads(path.read_text()) for path in EVENTS.glob("run-*.json")]
    assert kinds == {event["kind"] for event in events if "kind" in event}
