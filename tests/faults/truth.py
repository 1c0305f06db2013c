"""What is true after all: read from MongoDB and from the table, held against what the clients saw."""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymongo.database import Database

from omniagent.session.manager import session_key, user_id_of
from tests.faults.client import Client, Stream, text_of
from tests.fixtures.proxy import Passage

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Json = dict[str, Any]


@dataclass
class Tally:
    """What the whole run came to."""

    turns: int = 0
    kills: int = 0
    losses: int = 0
    duplicates: int = 0
    waits: list[float] = field(default_factory=list)
    """From each kill to the next turn that its session accepted, in seconds."""

    def __str__(self) -> str:
        longest = f"{max(self.waits):.1f} s" if self.waits else "none was waited for"
        return (
            f"turns run {self.turns}, kills {self.kills}, losses {self.losses}, duplicates {self.duplicates}, "
            f"longest time from a kill until the session accepted the next turn {longest}"
        )


@dataclass(frozen=True)
class Conversation:
    """A session as MongoDB holds it."""

    key: str
    document: Json
    messages: Sequence[Json]

    @classmethod
    def read(cls, database: Database[Json], client: Client) -> "Conversation":
        key = session_key(user_id_of(f"local:{client.user}"), client.session)
        document = database["sessions"].find_one({"_id": key}) or {"latest_turn_number": 0, "active_turn_id": None}
        found = database["messages"].find({"session_id": key}).sort([("turn_number", 1), ("role", -1)])
        return cls(key, document, list(found))

    @property
    def questions(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "user"]

    @property
    def answers(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "assistant"]

    def answer(self, answer_id: str) -> Json | None:
        return next((answer for answer in self.answers if answer["client_message_id"] == answer_id), None)


def check(conversation: Conversation, streams: Sequence[Stream], tally: Tally) -> None:
    """Hold a session at rest against P1 to P5, whatever had happened to it."""
    asked = Counter(message["client_message_id"] for message in conversation.questions)
    lost = [
        *(stream.message_id for stream in streams if _acknowledged(stream) and not asked[str(stream.message_id)]),
        *(stream.answer_id for stream in _last_finished(streams) if not _is_stored(stream, conversation)),
    ]
    twice = [
        *(message_id for message_id, times in asked.items() if times > 1),
        *(number for number, times in _turn_numbers(conversation.answers).items() if times > 1),
    ]
    tally.turns += len(conversation.questions)
    tally.losses += len(lost)
    tally.duplicates += len(twice)
    assert not lost, f"lost: {lost}"
    assert not twice, f"twice: {twice}"

    numbers = list(range(1, len(conversation.questions) + 1))
    assert [message["turn_number"] for message in conversation.questions] == numbers
    assert [message["turn_number"] for message in conversation.answers] == numbers
    assert conversation.document["latest_turn_number"] == len(numbers)
    assert conversation.document["active_turn_id"] is None
    tools = [part for answer in conversation.answers for part in answer["parts"] if part["type"] == "tool"]
    assert all(part["done"] for part in tools), "a tool call is left open"


def _acknowledged(stream: Stream) -> bool:
    return stream.status == 200 and stream.message_id is not None


def _last_finished(streams: Sequence[Stream]) -> list[Stream]:
    """The streams that told of a stored answer which nobody was told was replaced."""
    return list({stream.turn_number: stream for stream in streams if stream.finished_as}.values())


def _is_stored(stream: Stream, conversation: Conversation) -> bool:
    answer = conversation.answer(stream.answer_id)
    if answer is None:
        return False
    if stream.finished_as == "interrupted":
        # Told by a follower, who may have known less than was stored.
        return stored_text(answer).startswith(stream.text)
    return bool(stored_text(answer) == stream.text and answer["status"] == stream.finished_as)


def _turn_numbers(messages: Sequence[Json]) -> Counter[int]:
    return Counter(message["turn_number"] for message in messages)


def stored_text(message: Json) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def read_log(dynamodb: "DynamoDBClient", table: str, key: str, turn_id: str) -> list[bytes]:
    """Return what each tick of a turn wrote to the table."""
    page = dynamodb.query(
        TableName=table,
        ConsistentRead=True,
        KeyConditionExpression="session_id = :session AND begins_with(#item, :chunks)",
        ExpressionAttributeNames={"#item": "item"},
        ExpressionAttributeValues={":session": {"S": key}, ":chunks": {"S": f"chunk#{turn_id}#"}},
    )
    return [zlib.decompress(item["frames"]["B"]) for item in page["Items"]]


def check_interrupted(answer: Json, stream: Stream, log: Sequence[bytes], journal: Sequence[Passage]) -> None:
    """Hold the answer of a killed turn against P3: what was sent up to the last tick is there.

    A tick begins after the tick before it was answered. So all that the client had got by then must be in it, or in
    an earlier one; no clock is compared with another.
    """
    assert answer["status"] == "interrupted"
    stored = stored_text(answer)
    assert stored == text_of(b"".join(log))
    assert stored.startswith(stream.text) or stream.text.startswith(stored)
    answered = _answered_ticks(journal, answer["client_message_id"])
    for number, moment in enumerate(answered[:-1], start=2):
        assert text_of(b"".join(log[:number])).startswith(stream.text_before(moment)), f"tick {number} is incomplete"


def _answered_ticks(journal: Sequence[Passage], turn_id: str) -> list[float]:
    """When each tick's events were known to be in the table."""
    mark = f"chunk#{turn_id}#"
    items = [
        (passage.message.body["Item"]["item"]["S"], passage.answered_at)
        for passage in journal
        if passage.message.name == "PutItem" and passage.message.body["Item"]["item"]["S"].startswith(mark)
    ]
    return [moment for _, moment in sorted(items) if moment is not None]
