"""Names for chats: from the first exchange, or from the summary and what came last."""

import logging

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, Overrides
from omniagent.ai.providers.model_calls import complete
from omniagent.errors import ModelError
from omniagent.messages import ChatMessage
from omniagent.session import window
from omniagent.session.manager import SessionState
from omniagent.settings import Settings

logger = logging.getLogger(__name__)

RECENT_TURNS = 3
MAX_CHARACTERS = 2_000


async def name_session(provider: LLMProvider, state: SessionState, settings: Settings) -> str:
    """Return a short name for a session. When the model has none, it is the first words."""
    turns = state.turns[-RECENT_TURNS:] if state.summary else state.turns[:1]
    messages = [_in_short(message) for message in window.messages_of(turns)]
    summary = state.summary.content[:MAX_CHARACTERS] if state.summary else None
    if messages or summary:
        try:
            asked = [ChatMessage.user(prompts.name_input(summary, messages))]
            overrides = Overrides(model=settings.name_model or None)
            request = ModelRequest(prompts.NAME_CHAT, asked, overrides=overrides)
            if name := prompts.clean_name((await complete(provider, request, purpose="name")).text):
                return name
        except ModelError as exc:
            logger.warning("The model gave no name", extra={"code": exc.code, "cause": str(exc)})
    return prompts.name_from_words(next((message.text for message in messages if message.text), summary or ""))


def _in_short(message: ChatMessage) -> ChatMessage:
    text = prompts.transcript_line(message).removeprefix(f"{message.role}: ")[:MAX_CHARACTERS]
    return ChatMessage.user(text) if message.role == "user" else ChatMessage.assistant(text)
