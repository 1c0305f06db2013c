"""How values from a model, a tool or a user are stored: so that BSON cannot misread or reject them.

BSON would turn `{"$ref": …, "$id": …}` into a reference, and cannot represent integers of more than 64 bits, lone
surrogates or nesting beyond 100 levels. In a part, only storable strings, numbers, booleans and null are stored as they
are. Any other value is stored as JSON text in a renamed field: `input` becomes `input_json`.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator

from omniagent.errors import StorageRejected
from omniagent.messages import Part

_SUFFIX: Final = "_json"
_INT64: Final = 2**63


class OpaqueDict(dict[str, Any]):
    """A dict that is stored as JSON text."""


def storable_text(text: str) -> str:
    """Return a text that BSON accepts: surrogate pairs are joined, and lone surrogates are replaced."""
    return text if _is_storable(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode_part(part: BaseModel) -> dict[str, Any]:
    """Return a part as it is stored. A `request` of None, the usual case, is left out."""
    stored: dict[str, Any] = {}
    for name in type(part).model_fields:
        match value := getattr(part, name):
            case str():
                is_plain = _is_storable(value)
            case int():
                is_plain = -_INT64 <= value < _INT64
            case _:
                is_plain = value is None or isinstance(value, float)
        stored |= {name: value} if is_plain else {f"{name}{_SUFFIX}": encode_json(value)}
    if stored.get("request", ...) is None:
        del stored["request"]
    return stored


def decode_part(stored: object) -> object:
    """Reverse `encode_part`."""
    if not isinstance(stored, Mapping):
        return stored
    return {
        name.removesuffix(_SUFFIX): decode_json(value) if name.endswith(_SUFFIX) else value
        for name, value in stored.items()
    }


def encode_json(value: object) -> str:
    """Return a value as JSON text. Raises `StorageRejected`."""
    try:
        return json.dumps(value, separators=(",", ":"), default=_jsonable)
    except (TypeError, ValueError, RecursionError) as exc:
        raise StorageRejected(f"not JSON: {type(exc).__name__}: {exc}") from exc


def decode_json(stored: Any) -> Any:
    """Reverse `encode_json`."""
    if not isinstance(stored, str):
        return stored
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return stored  # a session must stay readable, whatever is stored in it


StoredParts = list[Annotated[Part, BeforeValidator(decode_part)]]
StoredDict = Annotated[dict[str, Any], BeforeValidator(decode_json), AfterValidator(OpaqueDict)]

# For `Settings.bson_encoders` of a document that has such fields.
ENCODERS: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys(get_args(get_args(Part)[0]), encode_part),
    OpaqueDict: encode_json,
}


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _jsonable(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def now() -> datetime:
    """Return the current time as MongoDB stores it: in UTC, to the millisecond."""
    time = datetime.now(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)
