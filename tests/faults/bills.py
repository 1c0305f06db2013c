"""How often the model was asked and tools were run for each message, as the servers themselves counted."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from local.model.conversation import Conversation as ModelRequest
from local.model.conversation import Message, from_chat, from_responses
from local.model.journal import Recorded
from local.model.script import task_of
from tests.faults.load import User
from tests.faults.prompts import Prompt
from tests.faults.truth import Conversation, Findings, Json, steering_ids, stored_text
from tests.fixtures.proxy import Passage

_TAG = re.compile(r"\b[0-9a-f]{32}\b")


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
        self.claims: dict[str, list[float]] = defaultdict(list)
        """By what was claimed, when it was granted."""
        self._turns: Counter[str] = Counter()
        for turn_id, name, at in _granted(journal):
            self.claims[name].append(at)
            self._turns[turn_id] += 1

    def was_continued(self, turn_id: str) -> bool:
        """Whether another process claimed a turn to finish it."""
        return self._turns[turn_id] > 1

    def examine(self, user: User, conversation: Conversation) -> Findings:
        """Compare what was paid for with what one user asked for."""
        found = Findings()
        answers = {
            question["client_message_id"]: answer
            for question, answer in zip(conversation.questions, conversation.answers, strict=False)
        }
        joined = {message_id for answer in answers.values() for message_id in steering_ids(answer)}
        for message_id in user.prompts.keys() - joined:
            self._examine(user, message_id, answers.get(message_id), found)
        self._examine_history(conversation, found)
        return found

    def _examine(self, user: User, message_id: str, answer: Json | None, found: Findings) -> None:
        """Each step is paid for once, but for the one under way when a claim ended: the next claim asks it again.

        The messages that joined an answer are paid for with it. A claim of a message that was sent again after its
        answer pays for nothing.
        """
        prompt, joined = user.prompts[message_id], steering_ids(answer) if answer else []
        replaced = user.regenerated.get(message_id, [])
        turns = 1 + len(replaced)
        names = [message_id, *joined, *(f"regenerate:{answer_id}" for answer_id in replaced)]
        names += [f"answer:{answer['client_message_id']}"] if answer else []
        claims = sum(len(self.claims[name]) for name in names)
        attempts = max(min(claims, 1), claims - self._replays(user, message_id))
        calls = sum(len(self.model[each]) for each in (message_id, *joined))
        steps = prompt.steps + sum(user.prompts[each].steps for each in joined)
        if calls > steps * min(turns, attempts) + max(0, attempts - turns):
            found.doubled.append(f"message {message_id}: {calls} model calls for {steps} steps in {attempts} attempts")
        if (runs := self.tools[message_id]).total() > prompt.charges:
            found.doubled.append(f"message {message_id}: tools were run {dict(runs)} in {attempts} attempts")
        answers = {
            stream.answer_id
            for stream in user.client.streams
            if stream.finished_as == "complete" and (stream.message_id == message_id or stream.replaces in replaced)
        }
        if len(answers) > turns:
            found.doubled.append(f"message {message_id} has the answers {sorted(answers)}")
        if answers and calls < (1 if joined else prompt.steps):  # what joins before the first call is answered by it
            found.lost.append(f"message {message_id}: answered with {calls} model calls")
        if answer and answer["status"] == "complete":
            _examine_text(answer, prompt, [user.prompts[each].says for each in joined], found)

    def _replays(self, user: User, message_id: str) -> int:
        """How many claims only replayed the answer. One that joined a turn not yet released made none."""
        intervals = user.repeated.get(message_id, [])
        return sum(any(since <= at <= until for since, until in intervals) for at in self.claims[message_id])

    def _examine_history(self, conversation: Conversation, found: Findings) -> None:
        """The model was shown the answer that is stored of the turn before."""
        for question, answer in zip(conversation.questions[1:], conversation.answers, strict=False):
            requests = self.model[question["client_message_id"]]
            if not requests or answer["status"] != "complete":
                continue
            shown, stored = _said_before(requests[-1]), stored_text(answer)
            if not (stored.endswith(shown) if steering_ids(answer) else stored == shown):
                found.diverging.append(
                    f"the model was shown {shown!r} before {question['client_message_id']}, {stored!r} is stored"
                )


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


def _granted(journal: Sequence[Passage]) -> Iterator[tuple[str, str, float]]:
    """The claims that the table granted, or may have granted when its answer was lost: the turn, what for, and when.

    Whoever takes a turn over may know it only by its own id. It counts as what it was first claimed for.
    """
    names: dict[str, str] = {}
    for passage in journal:
        claimed = _claimed(passage.message.name, passage.message.body)
        if claimed is not None and (not passage.answer or b" 200" in passage.answer):
            turn_id, message_id = claimed
            yield turn_id, names.setdefault(turn_id, message_id), passage.at


def _claimed(name: str, body: Mapping[str, Any]) -> tuple[str, str] | None:
    """The turn of a claim, and what it is for. None for a request that is no claim.

    A claim is a put, or an update if the session had an inbox or its lease ended while the put was under way.
    """
    if name == "PutItem" and body["Item"]["item"]["S"] == "turn":
        return body["Item"]["turn_id"]["S"], body["Item"]["message_id"]["S"]
    values = body.get("ExpressionAttributeValues", {})
    if name == "UpdateItem" and ":lease_until" in values:
        return values[":turn_id"]["S"], values[":message_id"]["S"]
    return None


def largest_skew(journal: Sequence[Passage], lease_seconds: float, wall_clock_ahead: float) -> float:
    """Return how far the clock of some process was off, from the leases that it wrote."""
    skews = [
        float(passage.message.body["Item"]["lease_until"]["N"]) - lease_seconds - (passage.at + wall_clock_ahead)
        for passage in journal
        if passage.message.name == "PutItem" and passage.message.body["Item"]["item"]["S"] == "turn"
    ]
    # A request that is late on its way looks like a clock that is slow: only those ahead are sure.
    return max(skews, default=0.0)
