"""The smallest file of each kind, as each API takes it, for `make smoke MODEL=…`."""

import io
import struct
import wave
import zlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from omniagent.ai.providers.model_rules import FileKind

Json = dict[str, Any]


def _image() -> bytes:
    """Return a red square as PNG."""
    side = 64
    rows = (b"\0" + b"\xff\0\0" * side) * side
    chunks = {b"IHDR": struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + body


def _pdf() -> bytes:
    """Return an empty page."""
    content, places = "%PDF-1.4\n", ""
    page = "<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Resources<<>>>>"
    objects = ("<</Type/Catalog/Pages 2 0 R>>", "<</Type/Pages/Kids[3 0 R]/Count 1>>", page)
    for number, definition in enumerate(objects, start=1):
        places += f"{len(content):010} 00000 n \n"
        content += f"{number} 0 obj{definition}endobj\n"
    table = f"xref\n0 4\n0000000000 65535 f \n{places}trailer<</Size 4/Root 1 0 R>>\n"
    return f"{content}{table}startxref\n{len(content)}\n%%EOF\n".encode()


def _audio() -> bytes:
    """Return a tenth of a second of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(3_200))
    return file.getvalue()


FILES: Final[dict[FileKind, tuple[str, str, bytes]]] = {
    "image": ("red.png", "image/png", _image()),
    "pdf": ("empty.pdf", "application/pdf", _pdf()),
    "text": ("line.txt", "text/plain", b"A file of one line."),
    "audio": ("silence.wav", "audio/wav", _audio()),
}
"""Name, media type and content."""


def _encoded(kind: FileKind) -> str:
    return b64encode(FILES[kind][2]).decode()


def _address(kind: FileKind) -> str:
    return f"data:{FILES[kind][1]};base64,{_encoded(kind)}"


def _input_file(kind: FileKind) -> Json:
    return {"type": "input_file", "filename": FILES[kind][0], "file_data": _address(kind)}


def _sound(kind: FileKind) -> Json:
    return {"type": "input_audio", "input_audio": {"data": _encoded(kind), "format": "wav"}}


def _source(kind: FileKind) -> Json:
    return {"type": "base64", "media_type": FILES[kind][1], "data": _encoded(kind)}


PART_OF: Final[dict[str, dict[FileKind, Callable[[FileKind], Json]]]] = {
    "/responses": {
        "image": lambda kind: {"type": "input_image", "image_url": _address(kind)},
        "pdf": _input_file,
        "text": _input_file,
        "audio": _sound,
    },
    "/chat/completions": {
        "image": lambda kind: {"type": "image_url", "image_url": {"url": _address(kind)}},
        "pdf": lambda kind: {"type": "file", "file": {"filename": FILES[kind][0], "file_data": _address(kind)}},
        "audio": _sound,
    },
    "/v1/messages": {
        "image": lambda kind: {"type": "image", "source": _source(kind)},
        "pdf": lambda kind: {"type": "document", "source": _source(kind)},
        "text": lambda kind: {
            "type": "document",
            "source": {"type": "text", "media_type": FILES[kind][1], "data": FILES[kind][2].decode()},
        },
    },
}
"""By the path of the API: how a message holds each kind of file that the API has a part for."""


def extra_of(path: str, kind: FileKind) -> Json:
    """Return the fields of a request that replace its conversation with a question about a file."""
    text = {"type": "input_text" if path == "/responses" else "text", "text": "Which kind of file is this?"}
    message = {"role": "user", "content": [PART_OF[path][kind](kind), text]}
    return {"input" if path == "/responses" else "messages": [message]}
