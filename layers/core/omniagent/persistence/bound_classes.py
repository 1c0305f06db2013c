"""Keeps track of the database that the document classes of this process are bound to.

Beanie binds a class, not an instance: a second adapter for another database would take the classes away from the
first, and its documents would land in the wrong database.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beanie import Document, init_beanie
from pymongo.asynchronous.database import AsyncDatabase

from omniagent.errors import ConfigurationError


@dataclass(eq=False, slots=True)
class Binding:
    """The classes of one open connection. `address` is the URI that it was opened with; it may hold a password."""

    address: str = field(repr=False)
    database: AsyncDatabase[Any]
    documents: Sequence[type[Document]]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def shares_classes(self, other: "Binding") -> bool:
        return not set(self.documents).isdisjoint(other.documents)

    def same_database(self, other: "Binding") -> bool:
        return (self.address, self.database.name) == (other.address, other.database.name)

    def lost_classes_to(self, other: "Binding") -> bool:
        """Whether the other has subclasses of our classes: Beanie also binds base classes."""
        bases = {base for document in other.documents for base in document.mro()}
        return not self.same_database(other) and self.loop is other.loop and not bases.isdisjoint(self.documents)

    async def bind(self) -> None:
        await init_beanie(self.database, document_models=list(self.documents), skip_indexes=True)


_open: list[Binding] = []


async def bind_classes(binding: Binding) -> None:
    """Bind the classes, or refuse when an open adapter has bound one of them to another database."""
    # A connection whose event loop is closed was left open by mistake and is unusable.
    _open[:] = [other for other in _open if not other.loop.is_closed()]
    for other in _open:
        if other.shares_classes(binding) and not other.same_database(binding):
            raise ConfigurationError(
                f"the document classes are bound to the database {other.database.name!r} by another "
                "MongoBackendAdapter, and a class knows one database at a time: call its shutdown() first, "
                "or pass document classes of their own in DocumentModels"
            )
    _open.append(binding)
    try:
        await binding.bind()
        for other in _open:
            if other is not binding and other.lost_classes_to(binding):
                await other.bind()
    except BaseException:
        _open.remove(binding)
        raise


async def release_classes(binding: Binding) -> None:
    """Remove a connection that is being closed. Its classes are bound to one that is still open."""
    if binding not in _open:
        return
    _open.remove(binding)
    others = [other for other in _open if other.shares_classes(binding) and other.loop is binding.loop]
    if others:
        await others[-1].bind()
