"""The types of fields that requests and responses carry."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, StringConstraints, WithJsonSchema
from pydantic_core import core_schema

from omniagent.messages import HIDDEN_CHARACTERS
from omniagent.session.ids import ID_PATTERN, ID_TEXT

MAX_PARTS: Final = 64
MAX_BODY_BYTES: Final = 6_000_000
"""Lambda's own limit is 6 MB."""
LINE_PATTERN: Final = f"^[^{HIDDEN_CHARACTERS}]*$"
"""One line: no control characters, no line separators."""
_LINES_PATTERN: Final = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]*$"
"""Several lines: no other control characters."""


@dataclass(frozen=True, slots=True)
class IdOf:
    """Names whose id is wrong."""

    owner: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), "id", custom_error_message=f"the {self.owner}'s id must be {ID_TEXT}"
        )


Id = Annotated[str, StringConstraints(pattern=ID_PATTERN), IdOf("message")]
ChatId = Annotated[str, StringConstraints(pattern=ID_PATTERN), IdOf("chat")]
Text = Annotated[str, StringConstraints(max_length=MAX_BODY_BYTES)]
"""Text of any length. Pydantic refuses lone surrogates only where a string has a constraint."""
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=120, pattern=LINE_PATTERN)]
FeedbackText = Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_000, pattern=_LINES_PATTERN)]


def reference(name: str) -> dict[str, str]:
    """Return a reference to a component of an OpenAPI document."""
    return {"$ref": f"#/components/schemas/{name}"}


ShownMessageJson = Annotated[dict[str, Any], WithJsonSchema({"allOf": [reference("ShownMessage")]})]
"""A message in the AI SDK's format, written as it is. Only the document (`schemas`) knows its fields."""
