"""openai-agents with its MongoDB session behind uvicorn. Arguments: base url, MongoDB's address, port."""

import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.extensions.memory import MongoDBSession
from openai import AsyncOpenAI
from pymongo import AsyncMongoClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

base_url, mongodb_uri, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
set_tracing_disabled(True)
model = OpenAIResponsesModel("gpt-6-luna", AsyncOpenAI(base_url=base_url, api_key="none"))
agent = Agent("bench", instructions="Be brief.", model=model)
mongo: AsyncMongoClient[dict[str, object]] = AsyncMongoClient(mongodb_uri)


async def chat(request: Request) -> StreamingResponse:
    body = await request.json()
    session = MongoDBSession(body["session_id"], client=mongo, database="openai_agents")

    async def events() -> AsyncIterator[str]:
        result = Runner.run_streamed(agent, body["query"], session=session)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield f"data: {json.dumps({'type': 'text-delta', 'delta': event.data.delta})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


uvicorn.run(Starlette(routes=[Route("/chat", chat, methods=["POST"])]), port=port, log_level="warning")
