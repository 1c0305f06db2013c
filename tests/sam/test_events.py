"""The sample events are what Lambda would hand over."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from local.template import ROOT
from omniagent.session.ids import session_key, user_id_of

EVENTS = sorted((ROOT / "events").glob("*.json"))
FROM_URLS = [path for path in EVENTS if path.name.startswith(("chat-", "sessions-"))]


def load(path: Path) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(path.read_text())
    return event


def test_the_readme_lists_every_event_once() -> None:
    listed = re.findall(r"\]\(([\w-]+\.json)\)", (ROOT / "events/README.md").read_text())
    assert sorted(listed) == [path.name for path in EVENTS]


@pytest.mark.parametrize("path", FROM_URLS, ids=lambda path: path.stem)
def test_a_url_event_agrees_with_itself(path: Path) -> None:
    event = load(path)
    http, headers, body = event["requestContext"]["http"], event["headers"], event.get("body")
    assert event["version"] == "2.0"
    assert event["rawPath"] == http["path"]
    assert headers["host"] == event["requestContext"]["domainName"]
    assert ("content-length" in headers) == (body is not None)
    assert int(headers.get("content-length", 0)) == len((body or "").encode())
    assert headers["x-user-id"] == "ada"
    assert event["requestContext"]["authorizer"]["iam"]["userArn"].startswith("arn:aws:sts::")


FROM_QUEUES = [path for path in EVENTS if "Records" in load(path)]


@pytest.mark.parametrize("path", FROM_QUEUES, ids=lambda path: path.stem)
def test_a_queued_message_has_the_digest_of_its_body(path: Path) -> None:
    records = load(path)["Records"]
    for record in records:
        assert record["md5OfBody"] == hashlib.md5(record["body"].encode()).hexdigest()
    assert len({record["messageId"] for record in records}) == len(records)


def test_the_summary_events_name_the_session_of_the_story() -> None:
    assert load(ROOT / "events/summary-direct.json")["session_id"] == session_key(
        user_id_of("user:ada"), "lisbon-trip-01"
    )
    [job, *_] = load(ROOT / "events/summary-sqs-batch.json")["Records"]
    assert json.loads(job["body"]) == load(ROOT / "events/summary-direct.json")
