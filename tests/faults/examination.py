"""One session after the soak: what its client saw, the stores, and what model and tools counted have to agree."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from local.model.conversation import Conversation as ModelRequest
from local.model.conversation import Message, from_chat, from_responses
from local.model.journal import Recorded
from local.model.script import task_of
from omniagent import Agent
from tests.faults.client import Stream
from tests.faults.house import House
from tests.faults.load import Prompt, User
from tests.faults.truth import Conversation, Findings, Json, examine, said_in, steering_ids, stored_text
from tests.fixtures.proxy import Passage

_TAG = re.compile(r"\b[0-9a-f]{32}\b")
FALLBACK = Agent("any", "").fallback


class Bills:
    """What was asked of the model, of the tools and of the table, by message."""

    def __init__(self, requests: Sequence[Recorded], ledger: Path, journal: Sequence[Passage]) -> None:
        self.model: dict[str, list[ModelRequest]] = defaultdict(list)
        self.summaries = 0
        for request in requests:
            asked = from_responses(request.body) if request.api == "responses" else from_chat(request.body)
            if task_of(asked) == "summary":
                self.summaries += 1
            elif tag := _TAG.search(asked.prompt):
                self.model[tag[0]].append(asked)
        self.tools: dict[str, Counter[str]] = defaultdict(Counter)
        for line in ledger.read_text().splitlines():
            order, turn_id = line.split()
            self.tools[order][turn_id] += 1
        self.runs: Counter[str] = Counter()
        """By question, how often a process began to work on a turn of it, or may have."""
        self._turns: Counter[str] = Counter()
        for turn_id, question in _runs(journal):
            self.runs[question] += 1
            self._turns[turn_id] += 1

    def was_continued(self, turn_id: str) -> bool:
        """Whether another process took a turn over."""
        return self._turns[turn_id] > 1

    def examine(self, user: User, conversation: Conversation) -> Findings:
        """Compare what was paid for with what one user asked for."""
        found = Findings()
        questions = {said_in(each)[0]: each for each in conversation.nodes if each["role"] == "user"}
        joined = {message_id for each in conversation.nodes for message_id in steering_ids(each)}
        for message_id in user.prompts.keys() - joined:
            question = questions.get(message_id, {"_id": None})
            self._examine(user, message_id, question["_id"], conversation.answers_to(question), found)
            if question["_id"] is not None:
                self._examine_history(message_id, conversation.path_to(question["_id"]), found)
        return found

    def _examine(
        self, user: User, message_id: str, question: str | None, answers: Sequence[Json], found: Findings
    ) -> None:
        """Each step is paid for once, but for the one under way when a process died: the next one asks it again.

        The messages that joined an answer are paid for with it, and once more with each alternative to it.
        """
        prompt = user.prompts[message_id]
        joined = list(dict.fromkeys(each for answer in answers for each in steering_ids(answer)))
        turns = 1 + sum(user.regenerated.count(answer["_id"]) for answer in answers)
        attempts = self.runs[str(question)]
        calls = sum(len(self.model[each]) for each in (message_id, *joined))
        steps = prompt.steps + sum(user.prompts[each].steps for each in joined)
        if calls > steps * min(turns, attempts) + max(0, attempts - turns):
            found.doubled.append(f"message {message_id}: {calls} model calls for {steps} steps in {attempts} attempts")
        if (runs := self.tools[message_id]).total() > prompt.charges * turns:
            found.doubled.append(f"message {message_id}: tools were run {dict(runs)} in {attempts} attempts")
        complete = [answer for answer in answers if answer["status"] == "complete"]
        if len(complete) > turns:
            found.doubled.append(f"message {message_id} has the answers {[answer['_id'] for answer in complete]}")
        if complete and calls < (1 if joined else prompt.steps):  # what joins before the first call is answered by it
            found.lost.append(f"message {message_id}: answered with {calls} model calls")
        for answer in complete:
            _examine_text(answer, prompt, [user.prompts[each].says for each in steering_ids(answer)], found)

    def _examine_history(self, message_id: str, path: Sequence[Json], found: Findings) -> None:
        """The model was shown the stored answer of the turn before, and no message of another branch."""
        requests = self.model[message_id]
        on_path = {each for message in path for each in said_in(message)}
        for request in requests:
            before = request.items[: len(request.items) - len(request.since_prompt)]
            shown_ids = {tag for item in before if isinstance(item, Message) for tag in _TAG.findall(item.text)}
            if astray := shown_ids - on_path:
                found.diverging.append(f"the model was shown {sorted(astray)} of other branches before {message_id}")
        if not requests or len(path) < 2 or path[-2]["status"] != "complete":
            return
        shown, stored = _said_before(requests[-1]), stored_text(path[-2])
        if not (stored.endswith(shown) if steering_ids(path[-2]) else stored == shown):
            found.diverging.append(f"the model was shown {shown!r} before {message_id}, {stored!r} is stored")


def _examine_text(answer: Json, prompt: Prompt, joined: Sequence[str], found: Findings) -> None:
    """What joins an answer follows on it, or takes the place of a step that was not asked, or has to be asked again."""
    says = [prompt.says + "".join(joined), *(["".join(joined)] if joined else [])]
    if (stored := stored_text(answer)) not in says:
        found.diverging.append(f"one of {says} was to be said, {stored!r} is stored")


def _said_before(request: ModelRequest) -> str:
    """The last answer before the question that is being answered."""
    before = request.items[: len(request.items) - len(request.since_prompt)]
    said = [item.text for item in before if isinstance(item, Message) and item.role == "assistant"]
    return said[-1] if said else ""


def _runs(journal: Sequence[Passage]) -> Iterator[tuple[str, str]]:
    """Yield the turn and the question of each write to MongoDB that gives a process a turn, if it may have worked."""
    known: set[str] = set()
    for passage in journal:
        for fields in _written(passage.message.name, passage.message.body):
            turn = fields.get("turn") or {name[5:]: value for name, value in fields.items() if name.startswith("turn.")}
            if turn.get("run") and turn["run"] not in known and turn.get("state") == "running":
                known.add(turn["run"])
                if not passage.answer or not _MATCHED_NONE.search(passage.answer):
                    yield turn["id"], turn["question"]


_MATCHED_NONE = re.compile(rb"\x10n\x00\x00\x00\x00\x00")
"""In the answer to an update: it matched nothing, because the session had moved on."""


def _written(name: str, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the fields of sessions that a command sets."""
    if name == "insert" and body["insert"] == "sessions":
        return list(body["documents"])
    if name == "update" and body["update"] == "sessions":
        return [update["u"].get("$set", {}) for update in body["updates"] if isinstance(update["u"], Mapping)]
    if name == "findAndModify" and body["findAndModify"] == "sessions":
        return [body["update"].get("$set", {})]
    return []


def largest_skew(journal: Sequence[Passage], wall_clock_ahead: float) -> float:
    """Return how far the clock of some process was off, from the times that it wrote into journals."""
    skews = [
        float(passage.message.body["Item"]["at"]["N"]) - (passage.at + wall_clock_ahead)
        for passage in journal
        if passage.message.name == "PutItem" and passage.message.body["Item"]["item"]["S"].startswith("journal#")
    ]
    # A request that is late on its way looks like a clock that is slow: only those ahead are sure.
    return max(skews, default=0.0)


async def examine_session(house: House, user: User, bills: Bills) -> Findings:
    """Examine one session: the stores, the streams, a page and the tree that are read now, the model and the tools."""
    conversation = house.read(user.client)
    found = examine(conversation, user.client.streams)
    found.add(bills.examine(user, conversation))
    for stream in user.broken:
        _examine_broken(house, user, conversation, stream, bills=bills, found=found)
    stored = [(message["client_message_id"], stored_text(message)) for message in conversation.messages][-100:]
    shown = [(message["id"], _page_text(message)) for message in await user.client.messages()][-100:]
    if shown[-len(stored) :] != stored[-len(shown) :]:
        found.diverging.append(f"{user.client.session}: a page shows {shown}, stored is {stored}")
    leaf, nodes = await user.client.tree()
    if leaf != conversation.leaf or nodes != [(each["_id"], each["parent"]) for each in conversation.nodes]:
        found.diverging.append(f"{user.client.session}: a tree of {len(nodes)} nodes and {leaf} is shown")
    _examine_parents(user, conversation, found)
    _examine_summaries(house, conversation, found)
    return found


def _examine_parents(user: User, conversation: Conversation, found: Findings) -> None:
    """A message is where it was sent: after the one that it names, else at the end of a branch."""
    for message in conversation.nodes:
        if message["role"] == "user":
            [message_id] = said_in(message)
            expected = user.parents.get(message_id)
            is_first = conversation.children[message["parent"]][0] is message
            if (message["parent"] != expected) if expected is not None else not is_first:
                found.diverging.append(f"message {message_id} is after {message['parent']}, not {expected}")


def _page_text(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def _examine_broken(
    house: House, user: User, conversation: Conversation, stream: Stream, *, bills: Bills, found: Findings
) -> None:
    """What a client got before its stream broke is in the answer: in the whole one, or in what was repaired.

    An unfinished step that a message joined is another one when it is asked again. One that is asked again may also
    fail, or no longer fail.
    """
    if not stream.has_begun:
        return
    answer = conversation.by_node.get(stream.answer_id)
    if answer is None:
        found.lost.append(f"answer {stream.answer_id}, which was being streamed")
        return
    failed = answer["status"] == "failed" or stream.text == FALLBACK
    if steering_ids(answer) or (failed and bills.was_continued(stream.answer_id)):
        return
    try:
        # A turn that was being stopped when its process died is closed from its log, as an interrupted one is.
        closed = answer["status"] == "interrupted" or (
            answer["status"] == "cancelled" and bills.was_continued(stream.answer_id)
        )
        stored = stored_text(answer)
        if closed and stream.message_id is not None:
            house.check_closed(user.client, stream)
        elif closed:  # the run of an answered request, whose log has another name: all but its last tick is stored
            assert stored.startswith(stream.text) or stream.text.startswith(stored), f"{stream.text!r} was shown"
        else:
            assert stored.startswith(stream.text), f"{stream.text!r} was shown"
    except AssertionError as exc:
        found.diverging.append(f"answer {stream.answer_id}: {exc}")


def _examine_summaries(house: House, conversation: Conversation, found: Findings) -> None:
    """On the active path, each summary continues an earlier one, and none covers the latest turn."""
    ends = {(each["branch"], each["turn_number"]) for each in conversation.messages if each["role"] == "assistant"}
    kept = house.database["summaries"].find({"session_id": conversation.key, "draft": False})
    spans = [
        (each["start_turn_number"], each["end_turn_number"])
        for each in kept.sort("end_turn_number")
        if (each["branch"], each["end_turn_number"]) in ends
    ]
    starts = {1}
    for start, end in spans:
        if start not in starts or end < start or end >= conversation.document["latest_turn_number"]:
            found.diverging.append(f"summaries of {conversation.key}: {spans}")
        starts.add(end + 1)
