"""An agent for the customers of a shop. `test_agent.py` shows how it is tested."""

from dataclasses import dataclass, field

from omniagent import Agent, RunContext, ToolError, tool


@dataclass
class Shop:
    """What the tools share. Here a stand-in for your database."""

    customers: dict[str, str] = field(default_factory=lambda: {"1001": "ada", "1002": "bob"})
    """The customer of each order."""
    refunds: dict[str, str] = field(default_factory=dict)
    """The refunded order of each idempotency key."""


@tool
def refund(order_id: str, context: RunContext[Shop]) -> str:
    """Refund an order."""
    shop = context.deps
    if shop.customers.get(order_id) != context.user:
        raise ToolError(f"The customer has no order {order_id!r}. Ask for the number on the receipt.")
    shop.refunds.setdefault(str(context.call_id), order_id)
    return "refunded"


def shop_agent(shop: Shop) -> Agent:
    return Agent("support", "You help the customers of a shop. Be brief.", [refund], deps=shop)
