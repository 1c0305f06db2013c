"""Names for chats: from the first exchange, or from the summary and what came last."""

import asyncio
import logging

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import LLMProvider, ModelRequest, Overrides
from omniagent.budget.meter import Meter
from omniagent.errors import ModelError
from omniagent.messages import ChatMessage
from omniagent.session import window
from omniagent.session.live import SessionState
from omniagent.session.summaries import NoteCost, metered

logger = logging.getLogger(__name__)

RECENT_TURNS = 3
MAX_CHARACTERS = 2_000
MAX_SECONDS = 10.0
"""Maximum wait for a name. After that, the first words are used."""


async def name_session(
    provider: LLMProvider,
    state: SessionState,
    overrides: Overrides = Overrides(),
    *,
    max_seconds: float = MAX_SECONDS,
    meter: Meter | None = None,
    note_cost: NoteCost | None = None,
) -> str:
    """Return a short name for a session. If the model times out, the name is the first words."""
    turns = state.turns[-RECENT_TURNS:] if state.summary else state.turns[:1]
    messages = [_in_short(message) for message in window.messages_of(turns)]
    summary = state.summary.content[:MAX_CHARACTERS] if state.summary else None
    if messages or summary:
        try:
            async with asyncio.timeout(max_seconds):
                request = ModelRequest(
                    instructions=overrides.instructions or prompts.NAME_CHAT,
                    messages=[ChatMessage.user(prompts.name_input(summary, messages))],
                    overrides=overrides,
                )
                completion = await metered(meter, provider, request, purpose="name", note_cost=note_cost)
            if name := prompts.clean_name(completion.usable_text):
                return name
        except (ModelError, TimeoutError) as exc:
            logger.warning("model gave no name", extra={"cause": type(exc).__name__})
    words = next((message.text for message in messages if message.text), summary or "")
    return prompts.name_from_words(words)


def _in_short(message: ChatMessage) -> ChatMessage:
    text = prompts.spoken(message)[:MAX_CHARACTERS]
    return ChatMessage.user(text) if message.role == "user" else ChatMessage.assistant(text)
