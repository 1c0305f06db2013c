"""An event that would break a chat later is refused where it is made, with a text that says what to write."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import pytest

from local.template import ROOT
from omniagent.errors import ConfigurationError
from omniagent.messages import Usage
from omniagent.providers import (
    ModelEvent,
    ModelFinish,
    ModelReasoning,
    ModelReasoningDone,
    ModelRequest,
    ModelSource,
    ModelText,
    ModelToolCall,
    ModelToolDelta,
    ModelToolStart,
)

WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (ModelFinish, ("end_turn",), r"ModelFinish\(reason=…\) must be one of 'stop', .*\(write 'stop'\), not 'end_turn'"),
    (ModelFinish, ("tool_use",), "write 'tool-calls'"),
    (ModelFinish, (None,), "must be one of 'stop'"),
    (ModelFinish, ("stop", None), r"write|must be Usage\(input_tokens=…"),
    (ModelFinish, ("stop", {"input_tokens": 1}), r"must be Usage\("),
    (ModelFinish, ("stop", Usage(input_tokens=-1)), "integers from 0 on, not 'input_tokens=-1'"),
    (ModelFinish, ("stop", Usage(output_tokens=1.5)), "integers from 0 on"),  # type: ignore[arg-type]
    (ModelText, (None,), r"ModelText\(text=…\) must be text, not None"),
    (ModelText, (b"Hi",), "must be text"),
    (ModelReasoning, (1,), r"ModelReasoning\(text=…\)"),
    (ModelReasoningDone, ("sealed",), "None or a dict"),
    (ModelReasoningDone, ({"signature": b"sealed"},), "that can be stored as JSON"),
    (ModelToolStart, (None, "add"), r"ModelToolStart\(call_id=…\) must be text"),
    (ModelToolStart, ("", "add"), "an id that no other call has"),
    (ModelToolStart, ("call_1", None), r"name=…\) must be text"),
    (ModelToolDelta, ("call_1", None), r"ModelToolDelta\(text=…\)"),
    (ModelToolDelta, ("", "{"), "an id that no other call has"),
    (ModelToolCall, ("call_1", "add", {"a": 1}), r"such as json.dumps\(arguments\), not"),
    (ModelToolCall, ("call_1", "add", None), "json.dumps"),
    (ModelSource, ("javascript:alert(1)",), r"ModelSource\(url=…\) must be None or an address that begins with https"),
    (ModelSource, (None,), r"title=…\) must be text if there is no url"),
    (ModelSource, ("https://a.example", 1), "title"),
    (ModelSource, (None, "A.pdf", None), "media_type"),
]


@pytest.mark.parametrize(("make", "values", "text"), WRONG)
def test_a_wrong_event_says_what_to_write(make: Callable[..., Any], values: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make(*values)


def test_the_page_names_every_field_and_event() -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    _, _, section = page.partition("### A provider of your own")
    section = section.partition("\n## ")[0]
    assert [each.name for each in fields(ModelRequest) if f"| `{each.name}` |" not in section] == []
    assert [event.__name__ for event in get_args(ModelEvent) if f"| `{event.__name__}(" not in section] == []
