"""One session after the soak: what its client saw, the stores, the model and the tools have to agree."""

from typing import Any

from omniagent import Agent
from tests.faults.bills import Bills
from tests.faults.client import Stream
from tests.faults.house import House
from tests.faults.load import User
from tests.faults.truth import Conversation, Findings, examine, said_in, steering_ids, stored_text

FALLBACK = Agent("any", "").fallback


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
