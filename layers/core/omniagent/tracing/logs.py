"""`setup_logging`: JSON lines on Lambda, readable lines in a terminal, the same fields in both.

Modules log with `logging.getLogger(__name__)` and pass fields with `extra={}`. The ids of request, user, session,
turn and trace are added here, and secrets are masked.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from . import current_trace_id
from .redaction import redact, redact_text
from .spans import bound_fields

# Below WARNING these log requests, commands and responses, with the text of users and with keys.
THIRD_PARTY: Final = frozenset(
    (
        "aws_lambda_powertools",
        "awslambdaric",
        "beanie",
        "boto3",
        "botocore",
        "fastapi",
        "httpcore",
        "httpcore2",
        "httpx",
        "httpx2",
        "jwt",
        "mangum",
        "openai",
        "opentelemetry",
        "pymongo",
        "requests",
        "s3transfer",
        "urllib3",
    )
)

# Attributes of every record; all others come from `extra`. Python 3.12 added taskName.
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS: Final = {
    logging.DEBUG: "\x1b[2m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_DIM: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"


def setup_logging(
    level: str | int | None = None, service: str = "omniagent", *, stream: TextIO | None = None
) -> logging.Logger:
    """Configure the process's logging and return the package's logger. Calling it again reconfigures it.

    `level`, by default LOG_LEVEL or else INFO, is the level of the package. Other code logs at INFO or above,
    third-party libraries at WARNING or above.
    """
    chosen, unknown = _level(level if level is not None else os.environ.get("LOG_LEVEL") or "INFO")
    on_lambda = "AWS_LAMBDA_FUNCTION_NAME" in os.environ
    out = stream or (sys.stdout if on_lambda else sys.stderr)
    is_colourful = out.isatty() and not os.environ.get("NO_COLOR")
    formatter = _json_formatter(service) if on_lambda else _ReadableFormatter(colour=is_colourful)
    root = logging.getLogger()
    for previous in filter(_is_replaced, list(root.handlers)):
        root.removeHandler(previous)
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    handler.addFilter(_add_context)
    root.addHandler(handler)
    root.setLevel(max(chosen, logging.INFO))
    for name in THIRD_PARTY:
        logging.getLogger(name).setLevel(max(chosen, logging.WARNING))
    logger = logging.getLogger("omniagent")
    logger.setLevel(chosen)
    if unknown:
        logger.warning("log level unknown, using INFO", extra={"log_level": unknown})
    return logger


def _add_context(record: logging.LogRecord) -> bool:
    """Add the bound fields, and drop third-party details even if a library lowered its own level."""
    if record.levelno < logging.WARNING and record.name.partition(".")[0] in THIRD_PARTY:
        return False
    for field, value in {**bound_fields(), "trace_id": current_trace_id()}.items():
        if value is not None and not hasattr(record, field):
            setattr(record, field, value)
    return True


class _ReadableFormatter(logging.Formatter):
    """`12:30:01.250 INFO  omniagent.turns.turn  turn ended  steps=2 request_id=…`"""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = f"{self.formatTime(record, '%H:%M:%S')}.{int(record.msecs):03d}"
        fields = " ".join(f"{name}={_readable(value)}" for name, value in _extras(record).items())
        line = "  ".join(
            (
                self._paint(time, _DIM),
                self._paint(f"{record.levelname:<7}", _COLOURS.get(record.levelno, "")),
                self._paint(record.name, _DIM),
                redact_text(record.getMessage()),
            )
        )
        if fields:
            line = f"{line}  {self._paint(fields, _DIM)}"
        if record.exc_info:
            line = f"{line}\n{redact_text(self.formatException(record.exc_info))}"
        if record.stack_info:
            line = f"{line}\n{redact_text(record.stack_info)}"
        return line

    def _paint(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour and colour else text


def _json_formatter(service: str) -> logging.Formatter:
    # Imported here to save time where it is not needed: only Lambda uses it.
    from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

    return LambdaPowertoolsFormatter(
        json_serializer=_json_line,
        use_rfc3339=True,
        utc=True,
        serialize_stacktrace=False,  # the line has the traceback as text already
        service=service,
        name="%(name)s",
    )


def _json_line(fields: Mapping[str, Any]) -> str:
    own_fields = {name: value for name, value in fields.items() if name != "taskName"}
    return json.dumps(redact(own_fields), ensure_ascii=False, separators=(",", ":"))


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {name: redact(value, name=name) for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def _readable(value: Any) -> str:
    plain = isinstance(value, str) and not any(character.isspace() for character in value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def _level(level: str | int) -> tuple[int, str | None]:
    """Return the level's number, and the name if it is unknown: a typo must not keep a function from starting."""
    if isinstance(level, int):
        return level, None
    number = logging.getLevelNamesMapping().get(level.strip().upper())
    return (logging.INFO, level) if number is None else (number, None)


def _is_replaced(handler: logging.Handler) -> bool:
    """Whether a root handler would print each line twice: an earlier one of ours, basicConfig's or Lambda's."""
    return type(handler) is logging.StreamHandler or type(handler).__name__.startswith("LambdaLoggerHandler")
