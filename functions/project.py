"""Your project. All functions import it: what you register here works in the chat, the sessions and the summaries.

project = Project(
    agent=agent,
    documents=DocumentModels(session=Ticket),     # document classes of your own
    providers={"acme": AcmeProvider},             # models named acme/…
    settings={"max_steps": 4},                    # your defaults; parameters of the stack win
    budgets={"trial": Budget(tokens_per_day=20_000)},  # what users of a category may spend
    on_erase=forget,                              # deletes what your tools have stored of a user
)
"""

from agent import agent
from omniagent import Project

project = Project(agent=agent)
