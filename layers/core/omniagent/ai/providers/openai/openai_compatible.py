"""A compatible server, which may not have the Responses API."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import fields

from omniagent.ai.providers.api_provider import ApiProvider
from omniagent.ai.providers.llm_provider import ModelEvent, ModelRequest
from omniagent.ai.providers.openai.openai_responses import OpenAIResponses
from omniagent.errors import ModelRejected

_ABSENT = frozenset({404, 405, 501})


class OpenAICompatible(OpenAIResponses):
    """Calls the server through Responses, or from the first 404 on through Chat Completions."""

    _speaker: ApiProvider | None = None
    """What has answered at this address: this provider, or that of Chat Completions. None: nothing yet."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if self._speaker is None:
            return self._first_stream(request)
        return super().stream(request) if self._speaker is self else self._speaker.stream(request)

    async def _first_stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Find out whether the server has this API. If it has neither, the first refusal is raised."""
        refusal: ModelRejected | None = None
        for speaker in self._speakers():
            try:
                async with aclosing(ApiProvider.stream(speaker, request)) as events:
                    async for event in events:
                        self._speaker = speaker
                        yield event
            except ModelRejected as exc:
                if self._speaker is not None or exc.api_status not in _ABSENT:
                    raise
                refusal = refusal or exc
            else:
                return
        if refusal is not None:
            raise refusal

    def _speakers(self) -> Iterator[ApiProvider]:
        yield self
        from omniagent.ai.providers.openai.openai_chat import OpenAIChat  # most servers have this API

        options = {each.name: getattr(self.options, each.name) for each in fields(self.options)}
        yield OpenAIChat(self.model, client=self._client, **options)
