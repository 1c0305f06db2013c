"""Your project. All functions import it: what you register here works in every function.

project = Project(
    agent=agent,                                  # or several, chosen per session: agents={"support": …, "sales": …}
    documents=DocumentModels(session=Ticket),     # your own document classes
    providers={"acme": AcmeProvider},             # models named acme/…
    settings={"max_steps": 4},                    # your defaults; stack parameters override them
    budgets={"trial": Budget(tokens_per_day=20_000)},  # spending limits of a user category
    on_erase=forget,                              # deletes what your tools stored about a user
)
"""

from agent import agent
from omniagent import Approver, Project, ToolRequest


def approvers(approver: Approver, request: ToolRequest) -> bool:
    """Users decide about their own requests, and those of the category "approver" about all."""
    return approver.user == request.user or approver.category == "approver"


project = Project(agent=agent, approvers=approvers)
