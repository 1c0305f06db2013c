"""One session after the soak: what its client saw, the stores, the model and the tools have to agree."""

from typing import Any

from omniagent import Agent
from tests.faults.bills import Bills
from tests.faults.client import Stream
from tests.faults.house import House
from tests.faults.load import User
from tests.faults.truth import Conversation, Findings, examine, steering_ids, stored_text

FALLBACK = Agent("any", "").fallback


async def examine_session(house: House, user: User, bills: Bills) -> Findings:
    """Examine one session: the stores, the streams, a page that is opened now, the model and the tools."""
    conversation = house.read(user.client)
    found = examine(conversation, user.client.streams)
    found.add(bills.examine(user, conversation))
    for stream in user.broken:
        _examine_broken(house, user, conversation, stream, bills=bills, found=found)
    stored = [(message["client_message_id"], stored_text(message)) for message in conversation.messages][-100:]
    shown = [(message["id"], _page_text(message)) for message in await user.client.messages()][-100:]
    if shown[-len(stored) :] != stored[-len(shown) :]:
        found.diverging.append(f"{user.client.session}: a page shows {shown}, stored is {stored}")
    _examine_summaries(house, conversation, found)
    return found


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
    answer = conversation.answer(stream.answer_id)
    if answer is None:
        if [sent.message_id for sent in user.client.streams].count(stream.message_id) == 1:
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
    """Each summary continues the one before, and none covers the latest turn."""
    kept = house.database["summaries"].find({"session_id": conversation.key, "draft": False})
    spans = [(summary["start_turn_number"], summary["end_turn_number"]) for summary in kept.sort("start_turn_number")]
    expected = 1
    for start, end in spans:
        if start != expected or end < start or end >= conversation.document["latest_turn_number"]:
            found.diverging.append(f"summaries of {conversation.key}: {spans}")
        expected = end + 1
