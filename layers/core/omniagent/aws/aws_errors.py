"""What a call to AWS raises: nothing but these two, and `CancelledError`."""

from collections.abc import Mapping
from typing import Any


class AwsUnreachable(Exception):
    """The service did not answer, or answered that it cannot serve the call now. Trying again may help."""


class AwsRefused(Exception):
    """The service refused the call. `code` is AWS's name for the reason, `answer` the whole response."""

    def __init__(self, code: str, answer: Mapping[str, Any]) -> None:
        super().__init__(f"{code}: {answer.get('message') or answer.get('Message') or 'no message'}")
        self.code = code
        self.answer = answer
