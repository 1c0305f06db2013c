"""Which files the vendors' documentation says that their APIs take, and how the others are refused."""

import re

from local.model.errors import ApiError, Json

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SOURCES = {
    ("image", "base64"): _IMAGES,
    ("document", "base64"): ("application/pdf",),
    ("document", "text"): ("text/plain",),
}
_DATA = re.compile(r"data:([\w/+.-]+);base64,.+", re.DOTALL)
_AUDIO_MODEL = re.compile(r"gpt-audio|.*-audio-preview")


def check_openai_part(part: Json, model: str, param: str) -> None:
    """Check a part of a message of either OpenAI API."""
    chat = part["type"] in {"image_url", "input_audio", "file"}
    holder = part[part["type"]] if chat else part
    match part["type"]:
        case "input_image" | "image_url":
            address = holder["url" if chat else "image_url"]
            if address.startswith("data:") and _media_type(address) not in _IMAGES:
                message = "You uploaded an unsupported image. Please make sure your image is valid."
                raise ApiError(message, param=param, code="invalid_image_format")
        case "input_file" | "file" if "file_data" in holder:
            if not holder.get("filename"):
                raise ApiError(
                    "Missing required parameter: 'filename'.", param=param, code="missing_required_parameter"
                )
            kind = _media_type(holder["file_data"])
            if kind is None or (chat and kind != "application/pdf"):
                suffix = holder["filename"].rpartition(".")[2]
                message = f"Expected context stuffing file type to be a supported format: .pdf but got .{suffix}."
                raise ApiError(f"Invalid input: {message}", param=param, code="unsupported_file")
        case "input_audio" if not _AUDIO_MODEL.match(model):
            raise ApiError("This model does not support audio input.", param=param, code="invalid_value")


def check_claude_block(block: Json, param: str) -> None:
    """Check an image or a document of Anthropic's Messages API."""
    source = block.get("source") or {}
    if block["type"] not in {"image", "document"} or source.get("type") not in {"base64", "text"}:
        return
    allowed = _SOURCES.get((block["type"], source["type"]), ())
    if source.get("media_type") not in allowed:
        names = " or ".join(map(repr, allowed))
        raise ApiError(f"Input should be {names}", param=f"{param}.{block['type']}.source.media_type")
    if not source.get("data"):
        raise ApiError("Field required", param=f"{param}.{block['type']}.source.data")


def _media_type(address: str) -> str | None:
    found = _DATA.fullmatch(address)
    return found[1] if found else None
