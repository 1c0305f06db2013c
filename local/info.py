"""What the front tells about the stack: the model, the versions, the limits of the context."""

import platform
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from local.template import ROOT, Function
from omniagent.settings import Settings

TOLD = (
    "context_max_tokens",
    "context_max_turns",
    "max_message_chars",
    "max_steps",
    "summary_after_tokens",
    "summary_after_turns",
)


def stack_info(functions: Iterable[Function], environment: Mapping[str, str], *, offline: bool) -> dict[str, Any]:
    """Describe the stack as the chat function sees it, or the first function where there is no chat."""
    by_name = {function.short_name: function for function in functions}
    chat = by_name.get("chat") or next(iter(by_name.values()))
    settings = Settings.from_env({**chat.environment, **environment})
    return {
        "model": "offline" if offline else settings.model,
        "offline": offline,
        "api": settings.openai_api,
        "versions": {"omniagent": _version(), "python": platform.python_version()},
        **{name: getattr(settings, name) for name in TOLD},
    }


def _version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])
