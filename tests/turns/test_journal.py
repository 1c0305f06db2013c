"""A turn's journal: recorded, folded, read live, followed by others, and replayed from the stored answer."""

from collections.abc import Callable, Sequence
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniagent.errors import AnswerTooLong
from omniagent.messages import (
    CallRequest,
    DataPart,
    Part,
    ReasoningPart,
    Status,
    StepPart,
    TextPart,
    ToolPart,
    Usage,
)
from omniagent.protocol import events, sse
from omniagent.session.live import SessionMessage
from omniagent.session.manager import SessionManager
from omniagent.turns.engine import run as turn_run
from omniagent.turns.engine.run import LiveJournal
from omniagent.turns.journal import readers, records
from omniagent.turns.journal.readers import JournalReader, fold, replayed
from omniagent.turns.journal.recorder import AnswerRecorder
from omniagent.turns.journal.records import (
    Counted,
    HandedOver,
    RunStarted,
    StepEnded,
    StepWithdrawn,
)
from omniagent.turns.journal.replay import emit_parts, end_of, frames_of, missing_frames
from omniagent.turns.registry import Chunk
from tests.fixtures.stream import check_order
from tests.protocol.test_sse import texts, values


def chunks_of(*pieces: Sequence[bytes]) -> list[Chunk]:
    return [Chunk(number, "run", SessionManager.now(), b"\n".join(lines)) for number, lines in enumerate(pieces)]


class Played:
    """An answer as a model and its tools would produce it, whatever hypothesis makes of it."""

    def __init__(self) -> None:
        self.journal = LiveJournal()
        self.journal.add(RunStarted("run", 0, 1.0))
        self.journal.add(events.Start("m1", {}))
        self.recorder = AnswerRecorder(self.journal.add)
        self.writing: list[str] = []
        self.running: list[str] = []
        self.calls = 0
        self.recorder.start_step()

    @property
    def lines(self) -> list[bytes]:
        return self.journal.lines

    def play(self, move: str, text: str, value: Any) -> None:  # noqa: C901, PLR0912 - one case per move
        recorder, request = self.recorder, CallRequest(id="r", kind="approval", reason=text)
        match move:
            case "text":
                recorder.text(text)
            case "reasoning":
                recorder.text(text, ReasoningPart)
            case "seal":
                recorder.seal_reasoning({"id": text})
            case "end":
                recorder.end_block()
            case "call":
                self.calls += 1
                self.writing.append(f"call-{self.calls}")
                recorder.tool_start(self.writing[-1], f"tool {text}")
            case "arguments" if self.writing:
                recorder.tool_delta(self.writing[-1], text)
            case "run" if self.writing:
                recorder.tool_input(self.writing[-1], {"value": value})
                self.running.append(self.writing.pop())
            case "broken" if self.writing:
                recorder.tool_error(self.writing.pop(), error=text, public="Not JSON.", raw=f"{{{text}")
            case "output" if self.running:
                recorder.record(events.ToolOutputAvailable(self.running.pop(0), value))
            case "error" if self.running:
                recorder.tool_error(self.running.pop(0), error=text, public="It failed.")
            case "request" if self.running:
                recorder.tool_request(self.running[0], request)
            case "deny" if self.running:
                denied = request.model_copy(update={"approved": False})
                part = recorder.call(self.running.pop(0))
                recorder.tool_result(part.model_copy(update={"error": text, "request": denied}))
            case "data":
                recorder.data(DataPart(name="progress", data=value, id=text[:1]), transient=not text.isascii())
            case "steering":
                recorder.steering(f"m-{text}", text)
            case "withdraw":
                recorder.record(StepWithdrawn("no JSON", "Write JSON."))
                self.writing.clear()
                self.running.clear()
            case "step" if not (self.writing or self.running):
                recorder.record(StepEnded("tool-calls"))
                recorder.start_step()


MOVES = (
    *("text", "reasoning", "seal", "end", "call", "arguments", "run", "broken"),
    *("output", "error", "request", "deny", "data", "steering", "step"),
)
moves = st.lists(st.tuples(st.sampled_from(MOVES), texts.filter(bool), values), max_size=25)
# `check_order` knows no approvals.
plain_moves = moves.map(lambda each: [move for move in each if move[0] not in ("request", "deny")])


def played(each_move: list[tuple[str, str, Any]]) -> Played:
    answer = Played()
    for move in each_move:
        answer.play(*move)
    return answer


def shown(lines: Sequence[bytes]) -> bytes:
    return sse.frames_of([line for line in lines if readers.is_shown(line)])


def ordered(frames: bytes) -> None:
    """Check the frames of an answer against the order of a stream."""
    ending = sse.encode(events.Finish("stop", {}), events.DataSession({"status": "complete"}))
    check_order(list(sse.decode(frames + ending)))


# Recording and folding


@given(moves, st.data())
def test_everything_recorded_live_is_folded_from_the_journal(
    each_move: list[tuple[str, str, Any]], data: st.DataObject
) -> None:
    answer = played(each_move)
    cut = data.draw(st.integers(0, len(answer.lines)))
    draft = fold(chunks_of(answer.lines[:cut], answer.lines[cut:]))
    assert draft.is_readable
    assert draft.recorder.parts == answer.recorder.parts
    answer.recorder.close()
    assert replayed(answer.lines).parts == answer.recorder.parts


@given(plain_moves)
def test_an_answer_that_was_cut_off_is_closed_in_order(each_move: list[tuple[str, str, Any]]) -> None:
    answer = played(each_move)
    rebuilt = replayed(answer.lines)
    ordered(shown(answer.lines) + frames_of(rebuilt, AnswerRecorder.close))
    assert all(part.done for part in rebuilt.parts if isinstance(part, ToolPart))


def journal_of(*entries: records.Entry) -> list[bytes]:
    return [records.line_of(entry) for entry in entries]


FIRST_STEP = (
    RunStarted("run-1", 0, 100.0),
    events.Start("a1", {}),
    events.StartStep(),
    events.TextStart("0"),
    events.TextDelta("0", "Kept."),
    events.TextEnd("0"),
    StepEnded("tool-calls", [("c1", "work", "{}")], 101.0),
    Counted(Usage(10, 5).to_dict()),
)
TAKEN = RunStarted("run-2", 1, 200.0)
OPEN_STEP = (events.FinishStep(), events.StartStep(), events.TextStart("1"), events.TextDelta("1", "Half an ans"))


def test_the_unfinished_step_is_withdrawn_and_paid_for() -> None:
    lines = journal_of(*FIRST_STEP, *OPEN_STEP, Counted(Usage(7, 1).to_dict()))
    taken = journal_of(TAKEN)
    draft = fold(chunks_of(lines, taken))
    assert draft.recorder.parts == [StepPart(), TextPart(text="Kept.")]
    assert [usage.total_tokens for usage in draft.calls] == [15, 8]
    assert ([step.first_token_at for step in draft.steps], draft.begun_at) == ([101.0], 100.0)
    assert (draft.has_started, draft.was_asked, draft.next_chunk) == (True, True, 2)
    assert draft.lines == [*lines[: len(FIRST_STEP) + 1], *taken]
    again = fold(chunks_of(lines, journal_of(TAKEN, *OPEN_STEP[1:])))
    assert [part.text for part in again.recorder.parts if isinstance(part, TextPart)] == ["Kept.", "Half an ans"]
    assert again.begun_at == 100.0


def test_a_stream_that_ended_without_a_stored_answer_goes_on_without_its_end() -> None:
    ending = (events.FinishStep(), events.Finish("stop", {}), events.DataSession({}))
    lines = [*journal_of(*FIRST_STEP, *ending), sse.DONE_LINE]
    taken = journal_of(TAKEN)
    assert fold(chunks_of(lines, taken)).lines == [*lines[:-3], *taken]


def test_a_hand_over_is_no_death() -> None:
    left = HandedOver(has_open_calls=True)
    chunks = chunks_of(journal_of(*FIRST_STEP, left), journal_of(TAKEN))
    draft = fold(chunks)
    assert (draft.handed_over, draft.hand_overs) == (left, 1)
    assert readers.is_handed_over(chunks[0].lines)
    assert fold([*chunks, *chunks_of([], [], journal_of(TAKEN))[2:]]).handed_over is None, "the one after it died"
    stuck = HandedOver(has_open_calls=False, has_moved=False)
    draft = fold(chunks_of(journal_of(*FIRST_STEP, stuck, TAKEN)))
    assert (draft.handed_over, draft.hand_overs) == (stuck, 0)


def test_a_journal_that_is_broken_or_has_a_gap_is_not_continued() -> None:
    good = journal_of(*FIRST_STEP)
    for broken in (b'{"type": "text-del', b'{"type":"tool-output-error","toolCallId":"?","errorText":""}'):
        draft = fold(chunks_of(good, [broken, *journal_of(events.TextDelta("0", "lost"))]))
        assert not draft.is_readable
        assert draft.recorder.parts == [StepPart(), TextPart(text="Kept.")]
    first, _, third = chunks_of(good, [], [])
    assert not fold([first, third]).is_readable


def test_an_unknown_record_is_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    lines = [*journal_of(*FIRST_STEP), b'{"record":"hologram","url":"private"}'] * 2
    assert fold(chunks_of(lines)).is_readable
    [record] = [record for record in caplog.records if "unknown record" in record.getMessage()]
    assert vars(record)["kind"] == "hologram"


# The recorder


def test_reasoning_sealed_while_text_is_open_is_stored_after_the_text() -> None:
    sent: list[records.Entry] = []
    recorder = AnswerRecorder(sent.append)
    recorder.start_step()
    recorder.text("Let me see.")
    recorder.seal_reasoning({"encrypted_content": "sealed"})
    recorder.text("Done.")
    assert recorder.parts == [
        StepPart(),
        TextPart(text="Let me see."),
        ReasoningPart(text="", provider_data={"encrypted_content": "sealed"}),
        TextPart(text="Done."),
    ]
    assert not any(isinstance(entry, events.ReasoningStart | events.ReasoningEnd) for entry in sent)


def test_a_block_without_any_text_is_no_part_of_the_answer() -> None:
    answer = Played()
    for kind in (TextPart, ReasoningPart):
        answer.recorder.text("", kind)
    assert answer.recorder.parts == replayed(answer.lines).parts == [StepPart()]


def test_a_server_that_repeats_a_call_id_in_each_step_loses_no_call() -> None:
    answer = Played()
    for output in (1, 2):
        answer.recorder.start_step()
        answer.recorder.tool_start("call_0", "add")
        answer.recorder.tool_input("call_0", {})
        answer.recorder.record(events.ToolOutputAvailable("call_0", output))
    parts = replayed(answer.lines).parts
    assert [part.output for part in parts if isinstance(part, ToolPart)] == [1, 2]


def alternate(recorder: AnswerRecorder, _: int) -> None:
    recorder.text("\U0001f600", ReasoningPart)
    recorder.text("\U0001f600")


@pytest.mark.parametrize(
    "add",
    [
        lambda recorder, number: recorder.tool_start(f"call_{number:059}", "refund"),
        alternate,
        lambda recorder, _: recorder.data(DataPart(name="map", data="")),
        lambda recorder, _: recorder.seal_reasoning({}),
    ],
)
def test_an_answer_of_any_number_of_small_parts_fits_into_a_document(
    add: Callable[[AnswerRecorder, int], object],
) -> None:
    recorder = AnswerRecorder()
    recorder.start_step()
    with pytest.raises(AnswerTooLong):
        any(add(recorder, number) for number in range(20_000))
    recorder.add_paragraph("Sorry.")
    recorder.close()
    assert recorder.parts[-1].type == "text"
    assert len(bson.encode({"parts": [part.model_dump() for part in recorder.parts]})) < 16 * 1024 * 1024


# Readers in this process


async def read(journal: LiveJournal) -> bytes:
    return b"".join([frame async for frame in journal.read_frames()])


async def test_records_are_journaled_and_never_shown() -> None:
    """They contain internal errors, and data that only the provider may see."""
    journal = LiveJournal()
    for text in ("a", '{"record":'):
        journal.add(records.Failed("c1", "dsn=secret"))
        journal.add(events.TextDelta("0", text))
    journal.add(records.Thought({"not": object()}))  # dropped: it cannot be written
    journal.close()
    assert await read(journal) == sse.encode(events.TextDelta("0", "a"), events.TextDelta("0", '{"record":'))
    assert len(journal.lines) == 4


async def test_a_silent_journal_keeps_the_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_run, "KEEP_ALIVE_SECONDS", 0.01)
    journal = LiveJournal()
    reader = journal.read_frames()
    assert await anext(reader) == sse.KEEP_ALIVE
    journal.add(events.TextDelta("0", "a"))
    assert await anext(reader) == sse.encode(events.TextDelta("0", "a"))


# Readers in other processes

AGAIN = (events.StartStep(), events.TextStart("1"), events.TextDelta("1", "A whole answer."))


def kinds(frames: bytes) -> list[str]:
    return [event["type"] for event in sse.decode(frames)]


def test_an_unfinished_step_is_sent_when_its_process_is_alive_or_has_ended() -> None:
    first, rest = journal_of(*FIRST_STEP, *OPEN_STEP[:1]), journal_of(*OPEN_STEP[1:])
    log = JournalReader(holds_back=True)
    assert log.take([*first, *rest]) == shown(first)
    assert log.take([]) == shown(rest), "a chunk without lines is a sign of life"
    ended = [*first, *rest, sse.DONE_LINE]
    log = JournalReader(holds_back=True)
    assert (log.take(ended), log.has_ended) == (shown(ended), True)


def test_a_follower_of_a_process_that_died_sees_one_answer() -> None:
    first, again = journal_of(*FIRST_STEP, *OPEN_STEP), journal_of(TAKEN, *AGAIN)
    unseen, seen = JournalReader(holds_back=True), JournalReader(holds_back=True)
    assert unseen.take(list(first)) + unseen.take(list(again)) == shown(journal_of(*FIRST_STEP, *OPEN_STEP[:1], *AGAIN))
    assert "text-delta" in kinds(seen.take(list(first)) + seen.take([]))
    assert kinds(seen.take(list(again))) == ["reset-step", "text-start", "text-delta"]
    assert unseen.lines == seen.lines == readers.surviving([*first, *again])


def test_a_step_that_is_withdrawn_twice_shows_all_of_its_last_attempt() -> None:
    attempt = (events.TextStart("1"), events.TextDelta("1", "Let me see."))
    seen, rest = journal_of(*AGAIN[:1], *attempt, StepWithdrawn(), *attempt), journal_of(StepWithdrawn(), *attempt)
    log = JournalReader()
    followed = log.take(list(seen)) + log.take(list(rest))
    assert kinds(followed)[-3:] == ["reset-step", "text-start", "text-delta"]


WITHDRAWN = StepWithdrawn("no JSON", "Write JSON.")


@given(
    st.lists(st.tuples(st.sampled_from((*MOVES, "withdraw")), texts.filter(bool), values), max_size=25),
    st.data(),
)
def test_every_reader_of_a_withdrawn_step_shows_what_is_stored(
    each_move: list[tuple[str, str, Any]], data: st.DataObject
) -> None:
    answer = played([move for move in each_move if move[0] not in ("seal", "request", "deny")])
    lines, parts = answer.lines, public(answer.recorder.parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    pieces = [lines[start:end] for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
    log = JournalReader(holds_back=True)
    followed = b"".join(log.take(list(piece)) for piece in (*pieces, []))
    assert public(fold(chunks_of(*pieces)).recorder.parts) == parts
    assert public(displayed(followed).parts) == parts


def displayed(frames: bytes) -> AnswerRecorder:
    """The answer of a client that knows `reset-step`."""
    kept: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        line = frame.removeprefix(b"data: ")
        if line == sse.line(events.ResetStep()):
            del kept[len(kept) - kept[::-1].index(readers.START_STEP) :]
        else:
            kept.append(line)
    return replayed(kept)


async def test_a_live_reader_drops_only_what_it_has_been_sent() -> None:
    journal = LiveJournal()
    early = journal.read_frames()
    recorder = AnswerRecorder(journal.add)
    recorder.start_step()
    recorder.text("no JSON")
    assert kinds(await anext(early)) == ["start-step", "text-start", "text-delta"]
    recorder.record(WITHDRAWN)
    recorder.text("{}")
    assert recorder.parts == [StepPart(), TextPart(text="{}")]
    assert kinds(await anext(early)) == ["reset-step", "text-start", "text-delta"]
    assert kinds(await anext(journal.read_frames())) == ["start-step", "text-start", "text-delta"]


def test_a_successor_is_told_why_an_answer_was_rejected() -> None:
    shown = (events.StartStep(), events.TextStart("0"), events.TextDelta("0", "no JSON"), WITHDRAWN)
    assert fold(chunks_of(journal_of(*shown))).rejected == WITHDRAWN
    assert fold(chunks_of(journal_of(*shown, *AGAIN[1:], StepEnded("stop")))).rejected is None


# Replaying


@given(plain_moves, st.data())
def test_a_stored_answer_is_replayed_and_completed_for_partial_readers(
    each_move: list[tuple[str, str, Any]], data: st.DataObject
) -> None:
    answer = played([move for move in each_move if move[0] != "seal"])
    answer.recorder.close()
    again = LiveJournal()
    again.add(events.Start("m1", {}))
    emit_parts(AnswerRecorder(again.add), answer.recorder.parts)
    ordered(shown(again.lines))
    assert public(replayed(again.lines).parts) == public(answer.recorder.parts)
    stored = SessionMessage("m1", "assistant", 1, answer.recorder.parts, metadata={"finishReason": "stop"})
    sent = answer.lines[: data.draw(st.integers(2, len(answer.lines)))]
    whole = shown(sent) + missing_frames(sent, stored)
    check_order(list(sse.decode(whole)))
    received = [frame.removeprefix(b"data: ") for frame in whole.split(b"\n\n")]
    assert public(replayed(received).parts) == public(stored.parts)


def public(parts: Sequence[Part]) -> list[Part]:
    """A reader does not see errors meant for the model."""
    return [
        part.model_copy(update={"error": part.public_error}) if isinstance(part, ToolPart) else part for part in parts
    ]


def test_a_reader_of_the_beginning_of_a_waiting_answer_gets_its_request() -> None:
    request = CallRequest(id="r1", kind="approval")
    part = ToolPart(call_id="c1", name="refund", input={"order": 42}, request=request)
    stored = SessionMessage("m1", "assistant", 1, [StepPart(), part], status="waiting")
    assert kinds(missing_frames(journal_of(events.StartStep()), stored)) == [
        *("tool-input-start", "tool-input-delta", "tool-input-available", "tool-approval-request"),
        *("finish-step", "finish", "data-session"),
    ]


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        ("complete", ["finish", "data-session"]),
        ("waiting", ["finish", "data-session"]),
        ("cancelled", ["abort", "finish", "data-session"]),
        ("interrupted", ["abort", "finish", "data-session"]),
        ("failed", ["finish", "data-session", "error"]),
    ],
)
def test_a_stored_answer_is_replayed_with_its_own_end(status: Status, ending: list[str]) -> None:
    assert kinds(end_of(SessionMessage("m1", "assistant", 1, [], status=status))) == ending
