"""`DocumentModels`: the document classes that a team may replace, and the contract of each."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from beanie import Document
from beanie.odm.fields import ExpressionField
from pydantic import ValidationError
from pymongo import IndexModel

from omniagent.errors import ContractError
from omniagent.persistence.documents import Message, Session, Summary, User
from omniagent.validation import problems_of

Filled = TypeVar("Filled", bound=Document)
Fill = Callable[[Any, str, str | None], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class DocumentModels:
    """The document classes. Extend one of the four by subclassing it with fields of your own that have defaults.

    `fill(document, user, category)`, which may be async, sets your own fields of each new document of the four before
    it is inserted. `user` is the name the user authenticates with. If `fill` raises, nothing is stored, except that an
    answer or a summary, whose tokens are already paid for, is stored with the fields' defaults.

    `further` are documents of your own: they are bound to the same database, and their indexes are created.
    """

    user: type[User] = User
    session: type[Session] = Session
    message: type[Message] = Message
    summary: type[Summary] = Summary
    further: tuple[type[Document], ...] = ()
    fill: Fill | None = None

    def __post_init__(self) -> None:
        """Refuse a class that the runtime cannot use; the error names the field. Needs no connection."""
        contracts = {"user": User, "session": Session, "message": Message, "summary": Summary}
        for role, contract in contracts.items():
            _check(role, getattr(self, role), contract)
        if not isinstance(self.further, tuple | list):
            raise ContractError(f"DocumentModels.further must be a tuple of classes, not {self.further!r:.100}")
        for model in self.further:
            if not _is_document(model):
                raise ContractError(f"DocumentModels.further takes Beanie Document classes, not {model!r}")
        if self.fill is not None:
            _check_fill(self.fill)

    def all(self) -> list[type[Document]]:
        return [self.user, self.session, self.message, self.summary, *self.further]


def _check(role: str, model: Any, contract: type[Document]) -> None:
    if not _is_document(model):
        raise ContractError(f"DocumentModels.{role} must be a Beanie Document class, not {model!r}")
    _check_fields(f"DocumentModels.{role}: {model.__name__}", model, contract)
    declared = [index.document for index in _setting(model, "indexes") if isinstance(index, IndexModel)]
    for index in _setting(contract, "indexes"):
        if index.document not in declared:
            keys = ", ".join(index.document["key"])
            raise ContractError(
                f"DocumentModels.{role}: {model.__name__} lacks the index on {keys}, which keeps turns apart. "
                f"Let its Settings extend {contract.__name__}.Settings and add to its indexes"
            )
    if not set(_setting(contract, "bson_encoders")) <= set(_setting(model, "bson_encoders")):
        raise ContractError(
            f"DocumentModels.{role}: {model.__name__}.Settings.bson_encoders must hold those of "
            f"{contract.__name__}.Settings: write {{**{contract.__name__}.Settings.bson_encoders, …}}"
        )


def _check_fields(name: str, model: type[Document], contract: type[Document]) -> None:
    if any(isinstance(field.default, ExpressionField) for field in model.model_fields.values()):
        raise ContractError(f"{name} was made after its base class had been bound to a database: define it at import")
    for field_name, field in contract.model_fields.items():
        if field_name not in model.model_fields:
            raise ContractError(f"{name} lacks the field {field_name!r}")
        if (annotation := model.model_fields[field_name].annotation) != field.annotation:
            raise ContractError(f"{name}.{field_name} must be {field.annotation}, not {annotation}")
    own = set(model.model_fields) - set(contract.model_fields)
    for field_name in own:
        if model.model_fields[field_name].is_required():
            raise ContractError(f"{name}.{field_name} needs a default")
    api_fields = getattr(model, "api_fields", ())
    if isinstance(api_fields, str):
        raise ContractError(f"{name}.api_fields must be a tuple of names: write ({api_fields!r},)")
    for field_name in api_fields:
        if field_name not in own:
            raise ContractError(f"{name}.api_fields names {field_name!r}, which is no field of its own")


def _check_fill(fill: object) -> None:
    if not callable(fill):
        raise ContractError(f"DocumentModels.fill must be a function, not {fill!r}")
    try:
        inspect.signature(fill).bind(None, "", None)
    except TypeError as exc:
        raise ContractError("DocumentModels.fill must take (document, user, category)") from exc


def _is_document(model: object) -> bool:
    return isinstance(model, type) and issubclass(model, Document)


def _setting(model: type[Document], name: str) -> Any:
    return getattr(getattr(model, "Settings", None), name, ())


async def fill_own_fields(fill: Fill, document: Filled, user: str, category: str | None) -> Filled:
    """Return a new document with the fields that the team's hook has set, checked."""
    filled: Filled = document.model_copy(deep=True)
    filling: Any = fill(filled, user, category)
    if filling is not None and not inspect.isawaitable(filling):
        raise ContractError(f"DocumentModels.fill must change the document and return None, not {filling!r:.100}")
    if filling is not None:
        await filling
    _check_filled(filled, document)
    return filled


def _check_filled(document: Document, before: Document) -> None:
    """Validate the values that `fill` has set: an invalid one would make the document unreadable.

    `fill` must not change the runtime's fields.
    """
    name = type(document).__name__
    contract = next((each for each in (User, Session, Message, Summary) if isinstance(document, each)), Document)
    for field_name in type(document).model_fields:
        value, old = getattr(document, field_name), getattr(before, field_name)
        if value is old or value == old:
            continue
        if field_name in contract.model_fields:
            raise ContractError(f"DocumentModels.fill changed {name}.{field_name}: set only fields of your own")
        try:
            type(document).__pydantic_validator__.validate_assignment(document, field_name, value)
        except ValidationError as exc:
            raise ContractError(f"DocumentModels.fill set {value!r:.100} in {name}: {problems_of(exc)}") from exc
