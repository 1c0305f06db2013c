"""What is true after all: read from MongoDB and from the table, held against what the clients saw."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymongo.database import Database

from omniagent.messages import DENIED_ERROR
from omniagent.protocol import sse
from omniagent.session.ids import session_key, user_id_of
from omniagent.turns.journal.records import is_shown, is_takeover, surviving
from tests.faults.client import Client, Stream, text_of
from tests.fixtures.active_path import active_path
from tests.fixtures.proxy import Passage

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Json = dict[str, Any]


@dataclass
class Findings:
    """What must never happen. Each entry says what was seen."""

    lost: list[str] = field(default_factory=list)
    """An acknowledged message, or an answer that was said to be stored, is not there."""
    doubled: list[str] = field(default_factory=list)
    """A second turn, answer, bill or run of a tool."""
    stuck: list[str] = field(default_factory=list)
    """A request that does not end, a session that is not given back."""
    diverging: list[str] = field(default_factory=list)
    """Clients, the stores and the model do not agree on what was said."""

    def add(self, other: "Findings") -> None:
        self.lost += other.lost
        self.doubled += other.doubled
        self.stuck += other.stuck
        self.diverging += other.diverging

    @property
    def counts(self) -> dict[str, int]:
        return {kind: len(seen) for kind, seen in vars(self).items()}

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def __str__(self) -> str:
        return "\n".join(f"{kind}: {what}" for kind, seen in vars(self).items() for what in seen) or "nothing"


@dataclass
class Tally:
    """What the whole run came to."""

    turns: int = 0
    kills: int = 0
    findings: Findings = field(default_factory=Findings)
    waits: list[float] = field(default_factory=list)
    """From each kill to the next turn that its session accepted, in seconds."""

    def __str__(self) -> str:
        longest = f"{max(self.waits):.1f} s" if self.waits else "none was waited for"
        found = ", ".join(f"{kind} {count}" for kind, count in self.findings.counts.items())
        return (
            f"turns run {self.turns}, kills {self.kills}, {found}, "
            f"longest time from a kill until the session accepted the next turn {longest}"
        )


@dataclass(frozen=True)
class Conversation:
    """A session as MongoDB holds it, with the messages of its active path."""

    key: str
    document: Json
    messages: Sequence[Json]

    @classmethod
    def read(cls, database: Database[Json], client: Client) -> "Conversation":
        key = session_key(user_id_of(f"local:{client.user}"), client.session)
        document = database["sessions"].find_one({"_id": key}) or {"latest_turn_number": 0, "turn": None, "queue": []}
        return cls(key, document, active_path(database, key))

    @property
    def questions(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "user"]

    @property
    def answers(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def said(self) -> list[str]:
        """The ids of the user's messages in order, with those that joined an answer."""
        return [
            message_id
            for message in self.messages
            for message_id in ([message["client_message_id"]] if message["role"] == "user" else steering_ids(message))
        ]

    def answer(self, answer_id: str) -> Json | None:
        return next((answer for answer in self.answers if answer["client_message_id"] == answer_id), None)

    def is_answered(self, message_id: str | None) -> bool:
        """Whether the answer to a message is stored. None means whatever is running."""
        if message_id is None:
            turn = self.document["turn"]
            return turn is None or turn["state"] == "waiting"
        turns = {answer["turn_number"] for answer in self.answers}
        asked = (question for question in self.questions if question["client_message_id"] == message_id)
        joined = any(message_id in steering_ids(answer) for answer in self.answers)
        return joined or any(question["turn_number"] in turns for question in asked)


def check(conversation: Conversation, streams: Sequence[Stream], tally: Tally) -> None:
    """Hold a session at rest against P1 to P5, whatever had happened to it."""
    findings = examine(conversation, streams)
    tally.turns += len(conversation.questions)
    tally.findings.add(findings)
    assert not findings, str(findings)


def examine(conversation: Conversation, streams: Sequence[Stream]) -> Findings:
    """Compare a session at rest with what its client saw."""
    found = Findings()
    asked = Counter(conversation.said)
    acknowledged = {str(stream.message_id) for stream in streams if stream.is_acknowledged and stream.message_id}
    found.lost += [f"message {message_id}" for message_id in acknowledged if not asked[message_id]]
    found.doubled += [f"message {message_id}" for message_id, times in asked.items() if times > 1]
    for number, times in Counter(answer["turn_number"] for answer in conversation.answers).items():
        if times > 1:
            found.doubled.append(f"{times} answers of turn {number} in {conversation.key}")
    _examine_order(conversation, streams, found)
    for stream in _last_finished(streams):
        _compare(stream, conversation, found)
    headless = [stream for stream in streams if stream.finished_as and not stream.has_begun]
    found.diverging += [f"a stream ends without its start: {stream.body.decode()}" for stream in headless]

    numbers = list(range(1, len(conversation.questions) + 1))
    for messages in (conversation.questions, conversation.answers):
        if (found_numbers := [message["turn_number"] for message in messages]) != numbers:
            found.lost.append(f"turns of {conversation.key}: {found_numbers}, not {numbers}")
    if conversation.document["latest_turn_number"] != len(numbers):
        found.diverging.append(f"{conversation.key}: {len(numbers)} turns, {conversation.document}")
    if conversation.document["turn"] is not None or conversation.document["queue"]:
        found.stuck.append(f"{conversation.key} is not given back: {conversation.document}")
    for answer in conversation.answers:
        if not all(part["done"] for part in answer["parts"] if part["type"] == "tool"):
            found.diverging.append(f"a tool call of {answer['client_message_id']} is left open")
    return found


def _examine_order(conversation: Conversation, streams: Sequence[Stream], found: Findings) -> None:
    """A message that was durable before another was first sent comes before it."""
    place = {message_id: number for number, message_id in enumerate(conversation.said)}
    sent: dict[str, float] = {}
    durable: dict[str, float] = {}
    for stream in streams:
        if stream.message_id in place:
            sent.setdefault(stream.message_id, stream.sent_at)
            if stream.is_acknowledged:
                known = durable.get(stream.message_id, stream.began_at)
                durable[stream.message_id] = min(known, stream.began_at)
    for earlier, moment in durable.items():
        early = [other for other, at in sent.items() if at > moment and place[other] < place[earlier]]
        found.diverging += [f"message {other} comes before {earlier}, which was sent before it" for other in early]


def _last_finished(streams: Sequence[Stream]) -> list[Stream]:
    """The streams that told of a stored answer which nothing that came after them may have replaced."""
    last: dict[tuple[int, str | None], Stream] = {}
    for stream in streams:
        if stream.finished_as and stream.has_begun:
            number = stream.turn_number
            last = {key: known for key, known in last.items() if key[0] != number or _agree(stream, known)}
            last[number, stream.message_id] = stream
        elif stream.status in {0, 200, 502}:  # neither refused nor ended: nobody knows what it has changed
            last = {key: known for key, known in last.items() if not _may_replace(stream, known)}
    return list(last.values())


def _agree(stream: Stream, known: Stream) -> bool:
    """Whether both tell of the same answer: one is that of a message which joined it."""
    return (stream.answer_id, stream.finished_as) == (known.answer_id, known.finished_as)


def _may_replace(stream: Stream, known: Stream) -> bool:
    if stream.message_id is not None:
        return stream.message_id == known.message_id and known.finished_as != "complete"
    return stream.replaces == known.answer_id


def _compare(stream: Stream, conversation: Conversation, found: Findings) -> None:
    answer = conversation.answer(stream.answer_id)
    if answer is None:
        found.lost.append(f"answer {stream.answer_id} of turn {stream.turn_number} ({stream.finished_as})")
        return
    stored, shown = stored_text(answer), stream.text
    if stream.finished_as == "interrupted":
        # Told by a follower, who may have known less than was stored.
        if not stored.startswith(shown):
            found.diverging.append(f"answer {stream.answer_id}: {shown!r} was shown, {stored!r} is stored")
    elif stream.finished_as == "waiting":
        if answer["status"] not in {"cancelled", "interrupted"}:  # the next message has closed it
            found.diverging.append(f"answer {stream.answer_id} waits, {answer['status']} is stored")
    elif stream.message_id in steering_ids(answer):
        if not stored.endswith(shown) or stream.finished_as != answer["status"]:
            found.diverging.append(
                f"answer {stream.answer_id}: {shown!r} {stream.finished_as} was shown to {stream.message_id}, "
                f"{stored!r} {answer['status']} is stored"
            )
    elif (shown, stream.tool_results, stream.finished_as) != (stored, _tool_results(answer), answer["status"]):
        found.diverging.append(
            f"answer {stream.answer_id}: {shown!r} {stream.tool_results} {stream.finished_as} was shown, "
            f"{stored!r} {_tool_results(answer)} {answer['status']} is stored"
        )


def _tool_results(answer: Json) -> dict[str, Any]:
    return {part["call_id"]: _tool_result(part) for part in answer["parts"] if part["type"] == "tool"}


def _tool_result(part: Json) -> Any:
    error = part.get("public_error") or part.get("error")
    if error == DENIED_ERROR:
        return None  # the stream tells no more than that
    return part["output"] if error is None else error


def steering_ids(answer: Json) -> list[str]:
    """The ids of the messages that joined an answer."""
    return [part["message_id"] for part in answer["parts"] if part["type"] == "steering"]


def stored_text(message: Json) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def read_log(dynamodb: "DynamoDBClient", table: str, key: str, turn_id: str) -> list[list[bytes]]:
    """Return the lines that each tick of a turn wrote to its journal."""
    page = dynamodb.query(
        TableName=table,
        ConsistentRead=True,
        KeyConditionExpression="session_id = :session AND begins_with(#item, :chunks)",
        ExpressionAttributeNames={"#item": "item"},
        ExpressionAttributeValues={":session": {"S": key}, ":chunks": {"S": f"journal#{turn_id}#"}},
    )
    return [zlib.decompress(item["lines"]["B"]).split(b"\n") for item in page["Items"]]


def check_closed(answer: Json, stream: Stream, log: Sequence[list[bytes]], journal: Sequence[Passage]) -> None:
    """Hold the answer of a killed turn against P3: what was sent up to the last tick is there.

    A tick begins after the tick before it was answered. So all that the client had got by then must be in it, or in
    an earlier one; no clock is compared with another.
    """
    lines = [line for tick in log for line in tick]
    stored, logged = stored_text(answer), _text_of(surviving(lines))
    # Whoever closed it read all but the record with which it took the turn over.
    assert stored in (logged, _text_of([line for line in lines if not is_takeover(line)])), f"{stored!r}, {logged!r}"
    assert stored.startswith(stream.text) or stream.text.startswith(stored), f"{stored!r}, {stream.text!r} was shown"
    if sum(map(is_takeover, lines)) > 1:
        return  # its ticks are those of several processes
    answered = _answered_ticks(journal, answer["client_message_id"])
    for number, moment in enumerate(answered[:-2], start=2):
        seen = stream.text_before(moment)
        assert _text_of([line for tick in log[:number] for line in tick]).startswith(seen), (
            f"tick {number} is incomplete"
        )


def _text_of(lines: Sequence[bytes]) -> str:
    return text_of(sse.frames_of([line for line in lines if line and is_shown(line)]))


def _answered_ticks(journal: Sequence[Passage], turn_id: str) -> list[float]:
    """When each tick's events were known to be in the table."""
    mark = f"journal#{turn_id}#"
    items = [
        (passage.message.body["Item"]["item"]["S"], passage.answered_at)
        for passage in journal
        if passage.message.name == "PutItem" and passage.message.body["Item"]["item"]["S"].startswith(mark)
    ]
    return [moment for _, moment in sorted(items) if moment is not None]
