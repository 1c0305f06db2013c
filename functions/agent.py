"""Your agent: its instructions, tools and model. `project.py` registers it.

A tool is an annotated function with a docstring; the model reads both. Raise `ToolError` to tell the model what to
correct. Any other exception of a tool stays in the log.
"""

import ast
import operator
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from omniagent import Agent, RunContext, ToolError, tool

LARGE_REFUND_EUROS = 50
OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@tool
def calculator(expression: Annotated[str, Field(description="For example: (3 + 4) * 2 ** 5", max_length=200)]) -> str:
    """Calculate an arithmetic expression exactly: + - * / // % ** and parentheses."""
    try:
        return f"{_evaluate(ast.parse(expression, mode='eval').body):.12g}"
    except (SyntaxError, TypeError, ValueError, RecursionError) as exc:
        raise ToolError("Not an arithmetic expression: use numbers, + - * / // % ** and parentheses.") from exc
    except (ZeroDivisionError, OverflowError) as exc:
        raise ToolError(f"The expression has no finite value: {exc}.") from exc


@tool
def current_time(timezone: Annotated[str, Field(description="IANA name, for example Asia/Tokyo")] = "UTC") -> str:
    """Tell the current date and time in a timezone."""
    try:
        return datetime.now(ZoneInfo(timezone)).strftime("%A, %d %B %Y, %H:%M:%S %Z")
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise ToolError(f"Unknown timezone {timezone!r}: use an IANA name such as Europe/Berlin.") from exc


@tool
def days_between(start: date, end: date) -> int:
    """Count the days from one date (YYYY-MM-DD) to another."""
    return (end - start).days


def large_refund(_: RunContext, arguments: Any) -> str | None:
    """Return why a refund needs approval. None lets it run at once."""
    is_large = arguments.euros > LARGE_REFUND_EUROS
    return f"Refunds of more than {LARGE_REFUND_EUROS} euros need approval." if is_large else None


@tool(approval=large_refund)
def refund(
    order: Annotated[int, Field(gt=0, description="The number on the receipt")],
    euros: Annotated[float, Field(gt=0, le=10_000)],
    context: RunContext,
) -> str:
    """Pay money back for an order of the user."""
    # An example without a real shop. Yours must check that the order belongs to `context.user`, and pay with
    # `context.call_id` as the idempotency key.
    return f"Refunded {euros:.2f} euros for order {order} (payment {context.call_id})."


INSTRUCTIONS = (
    "You are a helpful assistant. Answer in the user's language, in Markdown, and briefly. "
    "Use the tools for arithmetic, times and dates instead of guessing, and for refunds."
)


def today(context: RunContext) -> str:
    """Instructions that change, generated at the start of every turn. They follow the user's message."""
    return f"Today is {context.now.astimezone(UTC):%A, %d %B %Y}."


agent = Agent(
    name="assistant",
    instructions=[INSTRUCTIONS, today],
    tools=[calculator, current_time, days_between, refund],
    title="Shop assistant",
    description="An example that calculates, tells the time and asks before it pays money back.",
    suggestions=[
        "What is 17.5% of 2,340 and what time is it in Tokyo?",
        "Please refund order 1001, 80 euros",
        "Write a Python function that checks whether a number is prime",
        "Compare Lambda with containers for a chat backend",
    ],
)


def _evaluate(node: ast.expr) -> float:
    # Floats throughout: a huge power overflows at once, whereas one of integers would fill the memory.
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_evaluate(operand))
    raise ValueError("unsupported expression")
