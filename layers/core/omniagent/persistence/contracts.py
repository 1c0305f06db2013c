"""`DocumentModels`: the classes a team may replace, and the contract each must keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from beanie import Document

from omniagent.errors import ContractError
from omniagent.persistence.documents import Message, Session, Summary, User


@dataclass(frozen=True, slots=True)
class DocumentModels:
    """The four document classes. Extend one by subclassing it with fields of your own that have defaults."""

    user: type[User] = User
    session: type[Session] = Session
    message: type[Message] = Message
    summary: type[Summary] = Summary

    def all(self) -> list[type[Document]]:
        return [self.user, self.session, self.message, self.summary]

    def check(self) -> None:
        """Refuse a class that the runtime could not use, naming the field. Needs no connection."""
        contracts = {"user": User, "session": Session, "message": Message, "summary": Summary}
        for role, contract in contracts.items():
            _check(role, getattr(self, role), contract)


def _check(role: str, model: object, contract: type[Document]) -> None:
    if not (isinstance(model, type) and issubclass(model, Document)):
        raise ContractError(f"DocumentModels.{role} must be a Beanie Document class, not {model!r}")
    for name, field in contract.model_fields.items():
        if name not in model.model_fields:
            raise ContractError(f"DocumentModels.{role}: {model.__name__} lacks the field {name!r}")
        if model.model_fields[name].annotation != field.annotation:
            raise ContractError(
                f"DocumentModels.{role}: {model.__name__}.{name} must be {field.annotation}, "
                f"not {model.model_fields[name].annotation}"
            )
    for name, field in model.model_fields.items():
        if name not in contract.model_fields and field.is_required():
            raise ContractError(f"DocumentModels.{role}: {model.__name__}.{name} needs a default")
    made = indexes_of(model)
    for index in indexes_of(contract):
        if index not in made:
            keys = ", ".join(index["key"])
            raise ContractError(
                f"DocumentModels.{role}: {model.__name__} lacks the index on {keys}, which keeps turns apart. "
                f"Let its Settings extend {contract.__name__}.Settings and add to its indexes"
            )


def indexes_of(model: type[Document]) -> list[Mapping[str, Any]]:
    """The indexes that a document class asks for, as the driver describes them."""
    settings = getattr(model, "Settings", None)
    return [index.document for index in getattr(settings, "indexes", ())]
