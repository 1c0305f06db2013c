"""A stored message reads as the message that the AI SDK's client built while it streamed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from omniagent.messages import (
    ORPHAN_ERROR,
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    SourcePart,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
)
from omniagent.protocol.ui_messages import for_sdk, ui_message

CALL = {"type": "tool-weather", "toolCallId": "c1"}


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (StepPart(), [{"type": "step-start"}]),
        (TextPart(text="Hi."), [{"type": "text", "text": "Hi.", "state": "done"}]),
        (ReasoningPart(text="Hm."), [{"type": "reasoning", "id": "0", "text": "Hm.", "state": "done"}]),
        (ReasoningPart(text="", provider_data={"id": "r1"}), []),
        (
            SourcePart(source_id="s1", url="https://a.example", title="A"),
            [{"type": "source-url", "sourceId": "s1", "url": "https://a.example", "title": "A"}],
        ),
        (
            SourcePart(source_id="s1", title="A.pdf", media_type="application/pdf"),
            [{"type": "source-document", "sourceId": "s1", "mediaType": "application/pdf", "title": "A.pdf"}],
        ),
        (
            ToolPart(call_id="c1", name="weather", input={"city": "Lisbon"}, output=["sun"], done=True),
            [{**CALL, "state": "output-available", "input": {"city": "Lisbon"}, "output": ["sun"]}],
        ),
        (
            ToolPart(
                call_id="c1", name="weather", input={}, error="no route to 10.0.0.7", public_error="No.", done=True
            ),
            [{**CALL, "state": "output-error", "input": {}, "errorText": "No."}],
        ),
        (
            ToolPart(call_id="c1", name="weather", input="{city", error="not JSON", public_error="Bad.", done=True),
            [{**CALL, "state": "output-error", "rawInput": "{city", "errorText": "Bad."}],
        ),
        (
            ToolPart(call_id="c1", name="weather", input={}),
            [{**CALL, "state": "output-error", "input": {}, "errorText": ORPHAN_ERROR}],
        ),
    ],
)
def test_each_part_of_an_answer_is_shown_as_it_streamed(part: Part, shown: list[dict[str, Any]]) -> None:
    message = ui_message("m1", "assistant", [part], {"turnNumber": 1})
    assert message == {"id": "m1", "role": "assistant", "parts": shown, "metadata": {"turnNumber": 1}}


def test_version_7_has_arguments_that_are_not_json_as_the_input() -> None:
    part = ToolPart(call_id="c1", name="weather", input="{city", error="Bad.", public_error="Bad.", done=True)
    [shown] = ui_message("m1", "assistant", [part], {}, sdk=7)["parts"]
    assert shown == {**CALL, "state": "output-error", "input": "{city", "errorText": "Bad."}


def test_version_5_has_a_request_after_the_models_parts_of_its_step() -> None:
    request = CallRequest(id="r1", kind="approval")
    call = ToolPart(call_id="c1", name="weather", input={}, output="sun", done=True, request=request)
    later: list[Part] = [TextPart(text="Hello"), DataPart(name="map"), StepPart(), TextPart(text="Done.")]
    shown = ui_message("m1", "assistant", [StepPart(), call, *later], {}, sdk=5)["parts"]
    kinds = ["step-start", "tool-weather", "text", "data-approval-request", "data-map", "step-start", "text"]
    assert [part["type"] for part in shown] == kinds


def test_a_message_that_joined_an_answer_is_shown_as_the_client_knows_it() -> None:
    parts = [SteeringPart(message_id="m2", text="Shorter.")]
    assert ui_message("m1", "assistant", parts, {})["parts"] == [
        {"type": "data-steering", "id": "m2", "data": {"text": "Shorter."}}
    ]
    assert ui_message("m1", "assistant", parts, {}, sdk=7)["parts"] == [
        {"type": "steering-message", "id": "m2", "parts": [{"type": "text", "text": "Shorter."}]}
    ]


async def test_only_version_7_is_streamed_a_steering_message_of_its_own() -> None:
    steering = b'data: {"type":"data-steering","id":"m2","data":{"text":"Short: \xc3\xbc"}}\n\n'
    own = b'data: {"type":"steering-message","id":"m2","parts":[{"type":"text","text":"Short: \xc3\xbc"}]}\n\n'

    async def stream() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n" + steering + b"data: 2\n\n"
        yield steering

    for sdk, frame in ((5, steering), (6, steering), (7, own)):
        sent = b"".join([frames async for frames in for_sdk(stream(), sdk)])
        assert sent == b"data: 1\n\n" + frame + b"data: 2\n\n" + frame


def test_a_users_message_is_what_the_client_had_sent() -> None:
    message = ui_message("m1", "user", [TextPart(text="Hello")], {})
    assert message == {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
