"""A shop whose refunds have to be approved, and the bodies of those who answer."""

from typing import Any

from omniagent import Agent, ask_user, tool
from tests.fixtures.world import User

Json = dict[str, Any]
REFUND = '[echo:Let me see.] [tool:refund {"order": "42"}] [then] [echo:Done.]'
BOTH = '[tool:refund {"order": "1"}] [tool:ask_user {"question": "Why?", "choices": []}] [then] [echo:Done.]'
ran: list[str] = []


@tool(approval=lambda _, arguments: f"order {arguments.order} is large")
async def refund(order: str) -> str:
    """Refund an order."""
    ran.append(order)
    return f"refunded {order}"


SHOP = Agent("shop", "Help.", [refund, ask_user])


def wait(user: User, prompt: str = REFUND) -> Json:
    """Ask something that makes the turn wait, and return the answer as `useChat` loads it."""
    assert user.ask(prompt)[-1]["data"]["status"] == "waiting"
    return user.messages()[-1]


def tools(message: Json) -> list[Json]:
    return [part for part in message["parts"] if part["type"].startswith("tool-")]


def answered(user: User, message: Json, **verdict: Any) -> Json:
    """The body that the AI SDK sends when its user has answered every request of a message in the same way."""
    parts = [
        part | {"state": "approval-responded", "approval": part["approval"] | verdict}
        if part.get("state") == "approval-requested"
        else part
        for part in message["parts"]
    ]
    return {
        "id": user.session,
        "trigger": "submit-message",
        "messageId": message["id"],
        "messages": [message | {"parts": parts}],
    }
