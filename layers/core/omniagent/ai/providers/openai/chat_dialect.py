"""What servers with OpenAI's Chat Completions API want differently."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from omniagent.ai.providers.sent_parts import tool_name
from omniagent.messages import ToolPart

_OPENAI_MODEL = re.compile(r"(?:.*[/.:])?(?:o\d|gpt-(?!oss)|chatgpt|codex)")
_MISTRAL_MODEL = re.compile(r"mi[sx]tral|(?:mini|dev|magi|code|pix|vox)stral", re.IGNORECASE)
_KIMI_MODEL = re.compile(r"\bkimi\b", re.IGNORECASE)
_REASONING_HOST = re.compile(r"https?://[^/]*\b(?:deepseek|moonshot|kimi)\b", re.IGNORECASE)
_MISTRAL_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """One model on one server."""

    model: str
    base_url: str = ""

    @property
    def limit_field(self) -> str:
        """OpenAI's field for the length of an answer. Other servers refuse or ignore it, but know its predecessor."""
        is_openai = not self.base_url or ".azure.com" in self.base_url or _OPENAI_MODEL.match(self.model)
        return "max_completion_tokens" if is_openai else "max_tokens"

    @property
    def needs_reasoning(self) -> bool:
        """Whether the server refuses a tool call without `reasoning_content`, also one by another model."""
        return bool(_REASONING_HOST.match(self.base_url))

    def sent_ids(self, calls: Iterable[ToolPart]) -> dict[str, str]:
        """Return the ids under which the calls of a conversation are sent, if they are not their own.

        Mistral's models accept nine letters and digits only. Kimi's stop calling tools if they see other ids than those
        that they were trained on.
        """
        if _KIMI_MODEL.search(self.model):
            return {call.call_id: f"functions.{tool_name(call)}:{number}" for number, call in enumerate(calls)}
        if _MISTRAL_MODEL.search(self.model):
            return {call.call_id: _mistral_id(call.call_id) for call in calls}
        return {}


def _mistral_id(call_id: str) -> str:
    if _MISTRAL_CALL_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
