"""What the model is shown: the window of the path, the question and the answer so far."""

from collections.abc import Sequence
from dataclasses import replace

from omniagent.ai import prompts
from omniagent.ai.providers.llm_provider import ModelRequest, Overrides
from omniagent.messages import ChatMessage, Part
from omniagent.session import window
from omniagent.session.summaries import SharedPrompt
from omniagent.turns.engine.run import TurnRun
from omniagent.turns.setup import TurnSetup


def model_request(setup: TurnSetup, instructions: str, messages: Sequence[ChatMessage]) -> ModelRequest:
    """Return a model call of this agent. The next one may add messages; all else stays the same."""
    return ModelRequest(
        instructions=instructions,
        messages=messages,
        tools=setup.agent.tool_specs,
        overrides=setup.overrides,
        output=setup.agent.output_format,
        cache_key=setup.session.key,
        user_id=setup.session.user_id,
    )


def compose(run: TurnRun, answer: Sequence[Part]) -> list[ChatMessage]:
    """Return the messages of the next model call."""
    state, message = run.state, run.question
    question = ChatMessage(role="user", parts=list(message.parts) if message is not None else [])
    messages = window.compose(
        state.before(run.turn.number),
        run.setup.window_limits,
        question,
        answer,
        instructions=run.late_instructions,
        summary=prompts.summary_message(state.summary.content) if state.summary else None,
        summarized_to=state.summarized_to,
    )
    if message is None:  # the question of a continued answer was deleted
        messages.remove(question)
    return messages


def shared_prompt(run: TurnRun) -> SharedPrompt | None:
    """Return the prompt that a summary may begin with, if it is made by the same model in the same way."""
    setup, state = run.setup, run.state
    agent, chosen, limits = setup.agent, setup.overrides, setup.window_limits
    # `extra` may ask for reasoning, which costs more than the cache saves.
    if agent.summary != Overrides() or agent.output is not None or chosen.extra or not run.text:
        return None
    # Instructions of this turn follow the question, if they are made already.
    *messages, question = (message for message in compose(run, ()) if message.role != "system")
    room = limits.max_tokens - window.estimate_parts(question.parts)
    shown = window.window(state.before(run.turn.number), limits, summarized_to=state.summarized_to, room=room)
    request = replace(model_request(setup, agent.fixed_instructions, messages), overrides=Overrides(model=chosen.model))
    return SharedPrompt(setup.provider, request, shown[0].number) if shown else None
