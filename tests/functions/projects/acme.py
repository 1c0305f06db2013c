"""A project for tests: a provider, document classes and settings of its own."""

from collections.abc import AsyncGenerator
from typing import Any

from agent import agent
from omniagent import DocumentModels, Project
from omniagent.ai.providers.llm_provider import LLMProvider, ModelEvent, ModelFinish, ModelRequest, ModelText
from omniagent.messages import Usage
from omniagent.persistence.documents import Session, Summary


class Acme(LLMProvider):
    """Answers everything with its own name."""

    def __init__(self, model: str, **_: Any) -> None:
        super().__init__(model)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield ModelText(f"{self.model} answers")
        yield ModelFinish("stop", Usage())


class TeamSession(Session):
    team: str = "support"


class TeamSummary(Summary):
    team: str = "support"


project = Project(
    agent=agent,
    documents=DocumentModels(session=TeamSession, summary=TeamSummary),
    providers={"acme": Acme},
    settings={"model": "acme/acme-1", "max_message_chars": 100},
)
