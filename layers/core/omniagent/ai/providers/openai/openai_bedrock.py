"""OpenAI's APIs on Amazon Bedrock."""

from datetime import date

from omniagent.ai.providers.openai.openai_chat import OpenAIChat
from omniagent.ai.providers.openai.openai_provider import OpenAIProvider
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses


class _OnBedrock(OpenAIProvider):
    system = "aws.bedrock"

    async def shutdown_date(self) -> date | None:
        """Return None: Bedrock has no list of models at this address."""
        return None


class BedrockResponses(_OnBedrock, OpenAIResponses):
    """The Responses API on Bedrock."""


class BedrockChat(_OnBedrock, OpenAIChat):
    """The Chat Completions API on Bedrock."""
