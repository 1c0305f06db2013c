"""What the model is shown of a session. Pure functions: no clock, no database."""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate, groupby, pairwise

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import ModelRequest
from omniagent.messages import (
    ChatMessage,
    DataPart,
    Part,
    ReasoningPart,
    SourcePart,
    SteeringPart,
    StepPart,
    TextPart,
    ToolPart,
    Usage,
    close_open_calls,
)

CUT_OUTPUT_CHARS = 500
"""Maximum length of a tool output that is cut to save tokens."""
MIN_TURN_TOKENS = 64
"""Minimum tokens of a shortened turn. Less tells the model nothing."""
DELETED_QUESTION = "[The user deleted this question.]"
"""Stands before an answer that would come first: Claude's API refuses a conversation that does not begin with a user's
message."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """One stored turn: the user's message and the answer, or only one of them if the other was deleted."""

    number: int
    messages: tuple[ChatMessage, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class RollingSummary:
    """What happened in the turns `start_turn_number` to `end_turn_number` of a path, and in all before.

    It serves every path that contains its end: that turn's answer in `branch`.
    """

    content: str
    token_count: int
    start_turn_number: int
    end_turn_number: int
    branch: int = 0
    basis: str | None = field(default=None, compare=False)
    """The session's `summary_basis` before anything was read for it. None: not checked. Not stored."""

    created_at: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of the window."""

    max_turns: int
    max_tokens: int

    @property
    def full_tokens(self) -> int:
        """How many tokens fill the window. The last eighth is for the question and its answer."""
        return self.max_tokens - self.max_tokens // 8

    def newest_half(self, turns: Sequence[PastTurn]) -> list[PastTurn]:
        """Return the newest turns that fit into half a window."""
        return _newest(turns[max(0, len(turns) - self.max_turns // 2) :], self.full_tokens // 2)


def token_limit(wanted: int, context_window: int | None) -> int:
    """Return how many tokens of a conversation a model is shown: at most half of what it can read and write.

    The rest is for instructions, tools and the answer.
    """
    return wanted if context_window is None else min(wanted, context_window // 2)


def compose(
    turns: Sequence[PastTurn],
    limits: Limits,
    question: ChatMessage,
    answer: Sequence[Part] = (),
    *,
    instructions: str = "",
    summary: RollingSummary | None = None,
) -> list[ChatMessage]:
    """Return the messages of one model call: the summary, the window, the question, the answer so far.

    `instructions` of this turn follow the question: in the next turn, all up to the question is the same.

    The summary is left out while all turns are shown. The token budget covers the rest. Later calls only append, as
    long as they fit: the prompt stays cached.
    """
    budget = limits.max_tokens - estimate_parts(question.parts)
    so_far = fit_answer(answer, budget)
    history = window(turns, limits, summary, room=budget - estimate_parts(so_far))
    past = messages_of(history)
    if summary is not None and len(history) < len(turns):
        past.insert(0, prompts.summary_message(summary.content))
    if past and past[0].role == "assistant":
        past.insert(0, ChatMessage.user(DELETED_QUESTION))
    told = [ChatMessage.system(instructions)] if instructions.strip() else []
    return [*past, question, *told, *_split(ChatMessage(role="assistant", parts=so_far))]


def window(
    turns: Sequence[PastTurn], limits: Limits, summary: RollingSummary | None = None, *, room: int | None = None
) -> list[PastTurn]:
    """Return the turns that the model is shown, in order and without gaps, in at most `room` tokens.

    All of them until the window is full. From then on its start depends on the summary alone: half a window before the
    summary's end. If the next summary is late and there is no room, the turns that the summary covers leave first.
    `turns` has one turn more than the window if there are earlier ones.
    """
    room = limits.max_tokens if room is None else room
    since = _since(turns, summary)
    covered = [_with_cut_outputs(turn) for turn in turns[: len(turns) - len(since)]]
    if len(turns) <= limits.max_turns and _tokens(turns) <= min(room, limits.full_tokens):
        return list(turns)
    for shown in ([*limits.newest_half(covered), *since], since):
        if shown and len(shown) <= limits.max_turns and _tokens(shown) <= room:
            return shown
    shown = _in_steps(since or covered, limits)
    return shown if _tokens(shown) <= room else _squeezed(shown, limits.full_tokens, room)


def summary_is_due(turns: Sequence[PastTurn], limits: Limits, summary: RollingSummary | None = None) -> bool:
    """Whether half a window has passed since the last summary: with the half before, the window is full."""
    since = _since(turns, summary)
    tokens, full = _tokens(since), limits.full_tokens
    return len(since) >= limits.max_turns - limits.max_turns // 2 or tokens >= full - full // 2


def _since(turns: Sequence[PastTurn], summary: RollingSummary | None) -> list[PastTurn]:
    """Return the turns that the summary does not cover."""
    return [turn for turn in turns if summary is None or turn.number > summary.end_turn_number]


def _in_steps(turns: Sequence[PastTurn], limits: Limits) -> list[PastTurn]:
    """Let the oldest turns leave that no summary covers yet, half a window at a time.

    The steps depend on turn numbers and on the turns in order, so the next turn repeats them.
    """
    shown = [_with_cut_outputs(turn) for turn in turns[-limits.max_turns :]]
    if len(turns) > limits.max_turns:
        step = max(1, limits.max_turns // 2)
        left = turns[-limits.max_turns - 1].number // step
        shown = [turn for turn in shown if turn.number // step > left]
    rest: list[PastTurn] = []
    for turn in shown:
        rest.append(turn)
        if _tokens(rest) > limits.full_tokens:
            rest = limits.newest_half(rest) or [turn]
    return rest


def _squeezed(turns: Sequence[PastTurn], budget: int, room: int) -> list[PastTurn]:
    """Return the newest turns that fit. If not even one does, it is shortened.

    The budget is halved until it fits into the room, so that an answer that grows seldom moves the start.
    """
    while budget > max(room, 0):
        budget //= 2
    cut = [_with_cut_outputs(turn) for turn in turns]
    if cut and cut[-1].tokens > budget >= MIN_TURN_TOKENS:
        return [_shortened(cut[-1], budget)]
    return _newest(cut, budget)


def _newest(turns: Sequence[PastTurn], max_tokens: int) -> list[PastTurn]:
    totals = list(accumulate(turn.tokens for turn in reversed(turns)))
    return list(turns[len(turns) - bisect_right(totals, max_tokens) :])


def _tokens(turns: Sequence[PastTurn]) -> int:
    return sum(turn.tokens for turn in turns)


def fit_answer(parts: Sequence[Part], budget: int) -> list[Part]:
    """Return the answer so far within the budget. After a step that does not fit, all earlier tool outputs are cut.

    So the outputs that a call has shown change only with such a step, and not with each one after it.
    """
    if estimate_parts(parts) <= budget:
        return list(parts)
    starts = [index for index, part in enumerate(parts) if index and isinstance(part, StepPart)]
    fitted: list[Part] = []
    for start, end in pairwise([0, *starts, len(parts)]):
        fitted += parts[start:end]
        excess = estimate_parts(fitted) - budget
        if excess <= 0:
            continue
        for index, part in enumerate(fitted):
            if index >= start and excess <= 0:
                break
            fitted[index] = _cut_output(part)
            excess -= _estimate_part(part) - _estimate_part(fitted[index])
    return fitted


def messages_of(turns: Sequence[PastTurn]) -> list[ChatMessage]:
    """Flatten turns into messages that every model API accepts: each tool call has a result, none is empty."""
    repaired = (
        ChatMessage(role=message.role, parts=close_open_calls(message.parts))
        for turn in turns
        for whole in turn.messages
        for message in _split(whole)
    )
    return [message for message in repaired if any(isinstance(part, TextPart | ToolPart) for part in message.parts)]


def _split(message: ChatMessage) -> list[ChatMessage]:
    """Split an answer at the user's messages that joined it."""
    messages: list[ChatMessage] = []
    for is_joined, parts in groupby(message.parts, key=lambda part: isinstance(part, SteeringPart)):
        if is_joined:
            messages += [ChatMessage.user(part.text) for part in parts if isinstance(part, SteeringPart)]
        else:
            messages.append(ChatMessage(role=message.role, parts=list(parts)))
    return messages


def estimate_request(request: ModelRequest) -> int:
    """Estimate the input of a model call. Reasoning counts since the last question: few APIs want earlier reasoning."""
    tokens, is_earlier = estimate_text(request.instructions), False
    for message in reversed(request.messages):
        is_earlier = is_earlier or message.role == "user"
        tokens += estimate_parts(_without_reasoning(message.parts) if is_earlier else message.parts)
    return tokens


def estimate_call(request: ModelRequest, output: Sequence[Part]) -> Usage:
    """Estimate the cost of a model call that ended before the provider reported it."""
    reasoning = sum(_estimate_reasoning(part) for part in output if isinstance(part, ReasoningPart))
    return Usage(
        input_tokens=estimate_request(request),
        output_tokens=estimate_parts(_without_reasoning(output)) + reasoning,
        reasoning_tokens=reasoning,
        estimated=True,
    )


def pieces(turns: Sequence[PastTurn], max_tokens: int) -> list[list[PastTurn]]:
    """Group turns into pieces of at most `max_tokens` each. A longer turn is a piece of its own."""
    cut: list[list[PastTurn]] = []
    room = 0
    for turn in turns:
        if not cut or turn.tokens > room:
            cut.append([])
            room = max_tokens
        cut[-1].append(turn)
        room -= turn.tokens
    return cut


def estimate_parts(parts: Sequence[Part]) -> int:
    """Estimate the tokens of a message that no provider has counted yet."""
    return sum(map(_estimate_part, parts))


def estimate_answer(parts: Sequence[Part], output_tokens: int) -> int:
    """Return an answer's tokens: the provider's output count, plus estimates of tool results and joined messages."""
    if not output_tokens:
        return estimate_parts(parts)
    tools = sum(_estimate_result(part) for part in parts if isinstance(part, ToolPart))
    return output_tokens + tools + sum(_estimate_part(part) for part in parts if isinstance(part, SteeringPart))


def estimate_text(text: str) -> int:
    """Estimate tokens: about one per four ASCII characters, and one per other character."""
    ascii_characters = len(text) if text.isascii() else sum(map(str.isascii, text))
    return ascii_characters // 4 + (len(text) - ascii_characters) + 1


def characters_of(text: str, tokens: int) -> int:
    """Return how many characters of the text fit into `tokens`, estimated as in `estimate_text`."""
    return max(1, (tokens - 1) * (4 if text.isascii() else 1))


def _with_cut_outputs(turn: PastTurn) -> PastTurn:
    # The number of tokens may be the provider's: it is kept unless something is cut.
    is_long = any(_cut_output(part) is not part for message in turn.messages for part in message.parts)
    return _mapped(turn, _cut_output) if is_long else turn


def _shortened(turn: PastTurn, budget: int) -> PastTurn:
    """Cut every text and tool call of a turn to an equal share of the budget."""
    bulky = sum(_estimate_part(part) > 0 for message in turn.messages for part in message.parts)
    share = max(8, budget // max(1, bulky) - 4)
    shortened = _mapped(turn, lambda part: _cut_to(part, share))
    if shortened.tokens > budget:
        # Reasoning cannot be cut where it is data, and tool calls need theirs: keep only the texts.
        shortened = _mapped(shortened, lambda part: part if isinstance(part, TextPart | SteeringPart) else None)
    if shortened.tokens <= budget:
        return shortened
    # Too many parts for the budget: keep only the user's message.
    questions = [message for message in shortened.messages if message.role == "user"]
    return _mapped(replace(shortened, messages=tuple(questions)), lambda part: part)


def _mapped(turn: PastTurn, change: Callable[[Part], Part | None]) -> PastTurn:
    """Change every part of a turn, or leave it out."""
    messages = tuple(
        ChatMessage(role=message.role, parts=[part for part in map(change, message.parts) if part is not None])
        for message in turn.messages
    )
    return replace(turn, messages=messages, tokens=sum(estimate_parts(message.parts) for message in messages))


def _cut_output(part: Part) -> Part:
    if not isinstance(part, ToolPart):
        return part
    output = _as_text(part.output)
    if part.error is not None or len(output) <= CUT_OUTPUT_CHARS:
        return part
    return part.model_copy(update={"output": _cut_text(output, CUT_OUTPUT_CHARS)})


def _cut_to(part: Part, tokens: int) -> Part:
    match part:
        case TextPart():
            return TextPart(text=_cut_text(part.text, characters_of(part.text, tokens)))
        case SteeringPart() | ReasoningPart():
            return part.model_copy(update={"text": _cut_text(part.text, characters_of(part.text, tokens))})
        case ToolPart():
            half = tokens // 2
            text, output = _as_text(part.input), _as_text(part.output)
            return part.model_copy(
                update={
                    "input": part.input if estimate_text(text) <= half else {"cut": text[: characters_of(text, half)]},
                    "output": _cut_text(output, characters_of(output, half)),
                }
            )
    return part


def _cut_text(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]} [cut]"


def _estimate_part(part: Part) -> int:
    match part:
        case TextPart() | SteeringPart():
            return estimate_text(part.text)
        case ToolPart():
            return estimate_text(part.name) + estimate_text(_as_text(part.input)) + _estimate_result(part)
        case ReasoningPart():
            return 0 if part.provider_data is None else _estimate_reasoning(part)
        case StepPart() | DataPart() | SourcePart():
            return 0


def _estimate_reasoning(part: ReasoningPart) -> int:
    """Estimate reasoning. With `provider_data` it is sent back: as its text, or as the data that contain it."""
    data = 0 if part.provider_data is None else estimate_text(_as_text(part.provider_data))
    return max(estimate_text(part.text), data)


def _without_reasoning(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if not isinstance(part, ReasoningPart)]


def _estimate_result(part: ToolPart) -> int:
    error = part.error if part.done else part.close().error
    return estimate_text(error if error is not None else _as_text(part.output))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
