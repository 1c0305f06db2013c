"""Every event that the vendors' SDKs know is read, or ignored on purpose. A new one fails this test."""

from typing import Any, get_args

import pytest
from anthropic.types import ContentBlock, RawContentBlockDelta, RawMessageStreamEvent, StopReason, TextCitation
from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_output_text import Annotation

from omniagent.ai.providers.anthropic.anthropic_messages import MessageReader
from omniagent.ai.providers.openai.openai_responses import ResponseReader
from tests.providers.canned import Json

READ_RESPONSES = """response.output_text.delta response.refusal.delta response.reasoning_summary_text.delta
response.reasoning_text.delta response.output_item.added response.output_item.done
response.function_call_arguments.delta response.output_text.annotation.added response.completed response.incomplete
response.failed error"""
# Said by the events above: begins and ends of parts, and the whole of what came in pieces.
REPEATED_RESPONSES = """response.created response.in_progress response.queued response.content_part.added
response.content_part.done response.output_text.done response.refusal.done response.function_call_arguments.done
response.reasoning_summary_part.added response.reasoning_summary_part.done response.reasoning_summary_text.done
response.reasoning_text.done"""
# Of tools that OpenAI runs itself, and of sound: an answer is its text, its sources and the calls of our tools.
OTHER_RESPONSES = """response.audio.delta response.audio.done response.audio.transcript.delta
response.audio.transcript.done response.code_interpreter_call_code.delta response.code_interpreter_call_code.done
response.code_interpreter_call.completed response.code_interpreter_call.in_progress
response.code_interpreter_call.interpreting response.compaction.compacting response.file_search_call.completed
response.file_search_call.in_progress response.file_search_call.searching response.shell_call_command.added
response.shell_call_command.delta response.shell_call_command.done response.shell_call_output_content.delta
response.shell_call_output_content.done response.web_search_call.completed response.web_search_call.in_progress
response.web_search_call.searching response.image_generation_call.completed
response.image_generation_call.generating response.image_generation_call.in_progress
response.image_generation_call.partial_image response.mcp_call_arguments.delta response.mcp_call_arguments.done
response.mcp_call.completed response.mcp_call.failed response.mcp_call.in_progress response.mcp_list_tools.completed
response.mcp_list_tools.failed response.mcp_list_tools.in_progress
response.custom_tool_call_input.delta response.custom_tool_call_input.done"""
IGNORED_RESPONSES = [*REPEATED_RESPONSES.split(), *OTHER_RESPONSES.split()]

READ_MESSAGES = "message_start message_delta content_block_start content_block_delta content_block_stop"
IGNORED_MESSAGES = "message_stop"  # the stop reason came before it
READ_DELTAS = "text_delta thinking_delta signature_delta input_json_delta citations_delta"
# The page or the document that a citation names. A `file_path` is the answer's own file.
CITATIONS = """char_location page_location content_block_location web_search_result_location
search_result_location"""
ANNOTATIONS = "url_citation file_citation container_file_citation file_path"
READ_BLOCKS = "text thinking tool_use"
# Not shown, and sent back within the turn.
CARRIED_BLOCKS = """redacted_thinking server_tool_use web_search_tool_result web_fetch_tool_result
code_execution_tool_result bash_code_execution_tool_result text_editor_code_execution_tool_result
tool_search_tool_result container_upload"""
STOP_REASONS = "end_turn stop_sequence tool_use max_tokens model_context_window_exceeded refusal pause_turn"


def types_of(union: Any) -> set[str]:
    members = get_args(get_args(union)[0]) or get_args(union)
    return {get_args(member.model_fields["type"].annotation)[0] for member in members}


def test_every_event_of_responses_is_read_or_ignored() -> None:
    assert types_of(ResponseStreamEvent) == {*READ_RESPONSES.split(), *IGNORED_RESPONSES}
    assert types_of(Annotation) == set(ANNOTATIONS.split())


@pytest.mark.parametrize("kind", IGNORED_RESPONSES)
def test_an_ignored_event_of_responses_changes_nothing(kind: str) -> None:
    event: Json = {"type": kind, "delta": "x", "item": {"type": "other"}, "part": {}, "response": {}}
    assert list(ResponseReader().read([event])) == []


def test_every_event_of_messages_is_read_or_ignored() -> None:
    assert types_of(RawMessageStreamEvent) == {*READ_MESSAGES.split(), *IGNORED_MESSAGES.split()}
    assert types_of(RawContentBlockDelta) == set(READ_DELTAS.split())
    assert types_of(TextCitation) == set(CITATIONS.split())
    assert types_of(ContentBlock) == {*READ_BLOCKS.split(), *CARRIED_BLOCKS.split()}
    assert set(get_args(StopReason)) == set(STOP_REASONS.split())


@pytest.mark.parametrize("event", [{"type": "message_stop"}, {"type": "ping"}, {"type": "of_next_year"}])
def test_an_ignored_event_of_messages_changes_nothing(event: Json) -> None:
    assert list(MessageReader().read([event])) == []


def test_every_field_of_a_chat_delta_is_read_or_ignored() -> None:
    read, ignored = {"content", "refusal", "tool_calls"}, {"role", "audio", "function_call"}
    assert set(ChoiceDelta.model_fields) == read | ignored
    reasons, _ = get_args(Choice.model_fields["finish_reason"].annotation)
    assert set(get_args(reasons)) == {"stop", "length", "tool_calls", "content_filter", "function_call"}
