"""Tools, as a request to the offline model names them."""

from typing import Any

Json = dict[str, Any]
TEXT: Json = {"type": "string"}


def schema(**properties: Json) -> Json:
    """An object of which every property is required."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def function(name: str, description: str = "", *, strict: bool = False, **properties: Json) -> Json:
    """A tool, as the Responses API wants it."""
    parameters = schema(**properties)
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": strict}
