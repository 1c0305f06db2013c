"""The base class of every error."""

import re
from typing import Any, ClassVar


class OmniAgentError(Exception):
    """The base class. Each class defines its HTTP status and its public text.

    Its code is its name in snake case, unless it sets another one. Its title is the code in words.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    public: str = "An internal error occurred. Try again; if it persists, report the request id."
    retry_after: float | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in vars(cls):
            cls.code = "_".join(re.findall("[A-Z][a-z0-9]*", cls.__name__)).lower()
        cls.title = cls.code.replace("_", " ").capitalize()

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or self.public)
