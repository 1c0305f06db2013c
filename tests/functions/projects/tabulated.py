"""An agent for tests whose tool imports a package of its own."""

from tabulate import tabulate  # type: ignore[import-untyped]  # installed for the functions only

from omniagent import Agent, tool


@tool
def table() -> str:
    """Write a table."""
    text: str = tabulate([[1, 2]])
    return text


agent = Agent("tabulated", "Be brief.", tools=[table])
