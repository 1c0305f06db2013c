"""What servers with OpenAI's Chat Completions API want differently."""

import hashlib
import re
from dataclasses import dataclass

_OPENAI_MODEL = re.compile(r"(?:.*[/.:])?(?:o\d|gpt-(?!oss)|chatgpt|codex)")
_MISTRAL_MODEL = re.compile(r"mi[sx]tral|(?:mini|dev|magi|code|pix|vox)stral", re.IGNORECASE)
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

    def call_id(self, call_id: str) -> str:
        """Return the id under which a tool call is sent. Mistral's models accept nine letters and digits only."""
        if not _MISTRAL_MODEL.search(self.model) or _MISTRAL_CALL_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
