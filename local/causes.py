"""Why a request failed, from the functions' logs. Shown to the developer on a laptop, never to the public."""

import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from local.places import ROOT

REQUESTS_KEPT = 200
CAUSES_PER_REQUEST = 20
_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL"})
_FRAME = re.compile(r'File "([^"<]+)",? [Ll]ine (\d+)')
# Python's own modules and installed packages are in folders such as `python3.13`, or `python` in a built layer.
_NOT_OWN = re.compile(r"/(?:python(?:3\.\d+)?|omniagent|runtime)/")
_SYNTAX = re.compile(r"Runtime\.UserCodeSyntaxError: Syntax error in module '[^']*'")
_CHAINED = "\nThe above exception was the direct cause of"
_DIED = re.compile(r"(?:RequestId: (\S+) )?Error: (Runtime exited.*|Task timed out.*)")
# Advice for common failures, by their text in the log. The first match counts.
_ADVICE = (
    ("insufficient_quota", "The API key's account has no quota left. Check its billing, or use another key."),
    (
        "status_code 401",
        "The model's API rejected the key. Enter another one on the page, or check OPENAI_API_KEY and restart.",
    ),
    ("status_code 403", "The model's API does not allow this key. Check its project and the model's name."),
    (
        "status_code 404",
        "The model's API does not know this path or model. Check OPENAI_BASE_URL, OPENAI_API and the model's name.",
    ),
    ("status_code 405", "The server has a different API. Check OPENAI_BASE_URL and OPENAI_API."),
    ("status_code 429", "The model's API limits the request rate. Wait, or use another key."),
    ("sent no events", "The server has no model's API at this address. Check OPENAI_BASE_URL and OPENAI_API."),
    ("APIConnectionError", "The model's API cannot be reached. Check OPENAI_BASE_URL and the network."),
    ("silent for too long", "The model's API does not respond. Check OPENAI_BASE_URL and the network."),
    ("ServerSelectionTimeout", "MongoDB cannot be reached. Check MONGODB_URI and the server."),
)


@dataclass(frozen=True)
class Cause:
    """A log line of a failure. `traceback` is empty if there is none."""

    function: str
    message: str
    cause: str
    advice: str
    traceback: str


class Causes:
    """The causes of the last requests that failed."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_request: OrderedDict[str, list[Cause]] = OrderedDict()

    def add(self, function: str, line: str) -> None:
        """Take a log line of a function or of the platform."""
        if found := _read(function, line):
            request_id, cause = found
            if not request_id:
                # No request was running: the function failed to start. Only its last start counts.
                request_id = start_of(function)
                if cause.cause:
                    self._by_request.pop(request_id, None)
            causes = self._by_request.setdefault(request_id, [])
            if len(causes) < CAUSES_PER_REQUEST:
                causes.append(cause)
            while len(self._by_request) > REQUESTS_KEPT:
                self._by_request.popitem(last=False)

    def of(self, request_id: str) -> list[Cause]:
        """Return what went wrong with a request, in the order of the log."""
        return list(self._by_request.get(request_id, ()))


@dataclass(frozen=True)
class Place:
    """The line of a team's own source that a failure points to."""

    file: Path
    line: int

    @property
    def title(self) -> str:
        """The sentence that says where a project cannot be imported."""
        return f"{self.file.name} does not load, line {self.line}"

    @property
    def text(self) -> str:
        """The line itself, empty if the file cannot be read."""
        try:
            return self.file.read_text().splitlines()[self.line - 1].strip()
        except (OSError, IndexError, ValueError):
            return ""


def place_of(traceback: str) -> Place | None:
    """Return the innermost line that is neither the package's, nor an installed one's, nor Python's own."""
    for file, line in reversed(_FRAME.findall(traceback)):
        # The project's own folder may have any name.
        if not _NOT_OWN.search(file.removeprefix(str(ROOT))):
            return Place(Path(file), int(line))
    return None


def cause_of(traceback: str) -> str:
    """Return what was raised first in a traceback, and the line of the team's own source that it came from."""
    first = traceback.partition(_CHAINED)[0]
    place = place_of(first)
    where = f" ({place.file.name}, line {place.line})" if place else ""
    return f"{_last_line(first)}{where}"


def start_of(function: str) -> str:
    """Return the key that replaces a request id for a function that did not start."""
    return f"start-{function}"


def as_json(causes: list[Cause]) -> list[dict[str, str]]:
    """Return causes as JSON objects."""
    return [asdict(cause) for cause in causes]


def traceback_of(record: Mapping[str, Any]) -> str:
    """Return the traceback in a log record: our logger's text, or the list that AWS's runtime writes."""
    if isinstance(exception := record.get("exception"), str):
        return exception
    if not isinstance(trace := record.get("stackTrace"), list):
        return ""
    frames = "".join(f"{str(line).rstrip()}\n" for line in trace)
    return f"Traceback (most recent call last):\n{frames}{record.get('errorType')}: {record.get('errorMessage')}"


def _read(function: str, line: str) -> tuple[str, Cause] | None:
    if died := _DIED.fullmatch(line.strip()):
        return died[1] or "", Cause(function, died[2], "", "", "")
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or record.get("level") not in _LEVELS:
        return None
    traceback = traceback_of(record)
    error = ": ".join(str(record[name]) for name in ("errorType", "errorMessage") if record.get(name))
    cause = str(record.get("cause") or _SYNTAX.sub("SyntaxError", error) or _last_line(traceback))
    advice = next((text for name, text in _ADVICE if name in cause), "")
    message = str(record.get("message") or "the function failed")
    request_id = str(record.get("request_id") or record.get("requestId") or "")
    return request_id, Cause(function, message, cause, advice, traceback)


def _last_line(traceback: str) -> str:
    return traceback.strip().rpartition("\n")[2]
