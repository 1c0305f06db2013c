"""What is true after all: read from MongoDB and from the table, held against what the clients saw."""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pymongo.database import Database

from omniagent.messages import DENIED_ERROR
from omniagent.protocol import sse
from omniagent.session.ids import session_key, user_id_of
from omniagent.turns.journal.readers import is_shown, is_takeover, surviving
from tests.faults.client import OWN_ID, Client, Stream, text_of
from tests.fixtures.proxy import Passage

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Json = dict[str, Any]
ROOT: Json = {"role": "assistant", "turn_number": 0}


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


@dataclass(frozen=True)
class Conversation:
    """A session as MongoDB holds it, with the messages of all its branches, each after its parent."""

    key: str
    document: Json
    nodes: Sequence[Json]

    @classmethod
    def read(cls, database: Database[Json], client: Client) -> "Conversation":
        key = session_key(user_id_of(f"local:{client.user}"), client.session)
        none: Json = {"latest_turn_number": 0, "turn": None, "queue": [], "leaf": None}
        document = database["sessions"].find_one({"_id": key}) or none
        nodes = database["messages"].find({"session_id": key}).sort([("branch", 1), ("place", 1)])
        return cls(key, document, nodes.to_list())

    @cached_property
    def by_node(self) -> dict[str, Json]:
        return {message["_id"]: message for message in self.nodes}

    @cached_property
    def children(self) -> dict[str, list[Json]]:
        """By node, the messages after it, in the order of their creation."""
        children: dict[str, list[Json]] = defaultdict(list)
        for message in self.nodes:
            children[message["parent"]].append(message)
        return children

    @property
    def leaf(self) -> str:
        return str((self.document["leaf"] or {}).get("node", ""))

    def path_to(self, node: str) -> list[Json]:
        path: list[Json] = []
        while node in self.by_node:
            path.append(self.by_node[node])
            node = path[-1]["parent"]
        return path[::-1]

    @property
    def messages(self) -> list[Json]:
        """Those of the active path."""
        return self.path_to(self.leaf)

    @property
    def questions(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "user"]

    @property
    def answers(self) -> list[Json]:
        return [message for message in self.messages if message["role"] == "assistant"]

    def answers_to(self, question: Json) -> list[Json]:
        return self.children.get(question["_id"], [])

    def is_answered(self, message_id: str | None) -> bool:
        """Whether the answer to a message is stored. None means whatever is running."""
        if message_id is None:
            turn = self.document["turn"]
            return turn is None or turn["state"] == "waiting"
        return any(message_id in said_in(each) and (_is_answer(each) or self.answers_to(each)) for each in self.nodes)


def examine(conversation: Conversation, streams: Sequence[Stream]) -> Findings:
    """Compare a session at rest with what its client saw."""
    found, nodes = Findings(), conversation.nodes
    # A message that joined an answer is in every alternative to it.
    homes = {(said, each["parent"] if _is_answer(each) else each["_id"]) for each in nodes for said in said_in(each)}
    asked = Counter(said for said, _ in homes)
    acknowledged = {str(stream.message_id) for stream in streams if stream.is_acknowledged and stream.message_id}
    found.lost += [f"message {message_id}" for message_id in acknowledged if not asked[message_id]]
    found.doubled += [f"message {message_id}" for message_id, times in asked.items() if times > 1]
    _examine_tree(conversation, found)
    for leaf in nodes:
        if not conversation.children.get(leaf["_id"]):
            said = [message_id for message in conversation.path_to(leaf["_id"]) for message_id in said_in(message)]
            _examine_order(said, streams, found)
    for stream in _last_finished(streams):
        _compare(stream, conversation, found)
    headless = [stream for stream in streams if stream.finished_as and not stream.has_begun]
    found.diverging += [f"a stream ends without its start: {stream.body.decode()}" for stream in headless]

    if conversation.document["turn"] is not None or conversation.document["queue"]:
        found.stuck.append(f"{conversation.key} is not given back: {conversation.document}")
    for answer in filter(_is_answer, nodes):
        if not all(part["done"] for part in answer["parts"] if part["type"] == "tool"):
            found.diverging.append(f"a tool call of {answer['_id']} is left open")
    return found


def _examine_tree(conversation: Conversation, found: Findings) -> None:
    """Questions and answers follow each other on every path without a gap, and one end of a path is active."""
    for message in conversation.nodes:
        before = conversation.by_node.get(message["parent"]) if message["parent"] else ROOT
        number = before["turn_number"] + (not _is_answer(message)) if before else None
        if before is None or message["role"] == before["role"] or message["turn_number"] != number:
            found.lost.append(f"what {message['_id']} follows: {message['parent']} in turn {message['turn_number']}")
        if not _is_answer(message) and not conversation.answers_to(message):
            found.lost.append(f"the answer to {said_in(message)}")
    path = conversation.messages
    is_end = bool(path) and not conversation.children.get(conversation.leaf)
    if conversation.nodes and (not is_end or conversation.document["latest_turn_number"] != path[-1]["turn_number"]):
        found.diverging.append(f"the leaf of {conversation.key}: {conversation.document}")


def _examine_order(said: Sequence[str], streams: Sequence[Stream], found: Findings) -> None:
    """On a path, a message that was durable before another was first sent comes before it."""
    place = {message_id: number for number, message_id in enumerate(said)}
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
    """The streams that told of a stored answer. One that waited may have gone on since."""
    last: dict[tuple[str, str | None], Stream] = {}
    for stream in streams:
        if stream.continues and stream.status in {0, 200, 502}:
            last = {key: known for key, known in last.items() if key[0] != stream.continues}
        if stream.finished_as and stream.has_begun:
            last[stream.answer_id, stream.message_id] = stream
    return list(last.values())


def _compare(stream: Stream, conversation: Conversation, found: Findings) -> None:
    answer = conversation.by_node.get(stream.answer_id)
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


def said_in(message: Json) -> list[str]:
    """The ids of the user's messages that a stored message is, or holds: see `Client.ask`."""
    if _is_answer(message):
        return steering_ids(message)
    return [json.loads(message["metadata"]).get(OWN_ID, message["client_message_id"])]


def _is_answer(message: Json) -> bool:
    return bool(message["role"] == "assistant")


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
    return [moment for _, moment in sorted((item, moment) for item, moment in items if moment is not None)]
