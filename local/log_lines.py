"""The log of the functions, readable in a terminal."""

import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any, TextIO

from local.causes import traceback_of

DIM = "\x1b[2m"
RESET = "\x1b[0m"
LEVEL_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}
FUNCTION_COLOURS = {
    "chat": "\x1b[36m",
    "sessions": "\x1b[35m",
    "summary": "\x1b[34m",
    "run": "\x1b[33m",
}
# Fields that are the same on every line, or shown in another way.
LEFT_OUT = frozenset(
    {
        "exception",
        "exception_name",
        "level",
        "location",
        "message",
        "name",
        "service",
        "timestamp",
        "trace_id",
        "xray_trace_id",
    }
)
_REPORT = re.compile(r"REPORT RequestId: \S+ Duration: ([\d.]+) ms")
_PLATFORM = re.compile(r"(START|END) RequestId: ")
# What AWS's runtime says about its own updates before each failed start. There are none here.
_ADVICE = '"LAMBDA_WARNING: '


class LogLines:
    """Prints what functions log: `12:30:01 chat  INFO  turn ended  status=complete duration_ms=575`."""

    def __init__(self, out: TextIO) -> None:
        """Print to `out`, in colour if that is a terminal."""
        self._out = out
        self._colourful = out.isatty() and not os.environ.get("NO_COLOR")

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour, if colours are on."""
        return f"{colour}{text}{RESET}" if self._colourful and colour else text

    def print(self, function: str, line: str) -> None:
        """Print a line that a function, or the platform, has logged."""
        text = self._readable(line)
        if text is not None:
            now = self.paint(time.strftime("%H:%M:%S"), DIM)
            name = self.paint(f"{function:<8}", FUNCTION_COLOURS.get(function, ""))
            print(f"{now} {name}  {text}", file=self._out, flush=True)

    def _readable(self, line: str) -> str | None:
        """Return the readable form of a line, or None to skip it."""
        if _PLATFORM.match(line) or _ADVICE in line:
            return None
        if report := _REPORT.match(line):
            return self.paint(f"invocation of {float(report[1]):.0f} ms", DIM)
        try:
            record = json.loads(line)
        except ValueError:
            return line
        if isinstance(record, dict) and "errorType" in record:
            # A report of AWS's runtime about a failed function.
            text = self.paint(f"{'ERROR':<7}", LEVEL_COLOURS["ERROR"])
            return f"{text}  {record['errorType']}: {record.get('errorMessage')}\n{traceback_of(record)}".rstrip()
        if not isinstance(record, dict) or "message" not in record:
            # Metrics are for CloudWatch and are skipped.
            return None if isinstance(record, dict) and "_aws" in record else line
        return self._record(record)

    def _record(self, record: Mapping[str, Any]) -> str:
        level = str(record.get("level", "INFO"))
        # The request id is shown only with failures, to find their other lines.
        left_out = LEFT_OUT if level in LEVEL_COLOURS else LEFT_OUT | {"request_id"}
        fields = " ".join(f"{name}={_value(value)}" for name, value in record.items() if name not in left_out)
        text = f"{self.paint(f'{level:<7}', LEVEL_COLOURS.get(level, ''))}  {record['message']}"
        if fields:
            text = f"{text}  {self.paint(fields, DIM)}"
        if traceback := traceback_of(record):
            text = f"{text}\n{traceback}"
        return text


def _value(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)
