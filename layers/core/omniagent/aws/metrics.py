"""CloudWatch metrics of a turn, as one EMF line on standard output."""

import os
from typing import TYPE_CHECKING, Final

from omniagent.ai.providers.llm_provider import Purpose
from omniagent.ai.result import RunResult
from omniagent.errors import BudgetExceeded, ModelRejected, RequestError, TooManyRequests, TurnLost
from omniagent.messages import Usage

if TYPE_CHECKING:
    from aws_lambda_powertools.metrics import Metrics

NOT_OUR_FAULT: Final = (RequestError, ModelRejected, TurnLost)
"""How a user can end a turn: a spent budget, a message that the model's API refuses, a deleted session. A turn that
another process took over is counted there. No user may page the operator."""


def emit_turn(result: RunResult) -> None:
    """Print the turn's metrics. The template's alarms and dashboard are built on these names.

    Namespace and service come from Powertools' variables; the service distinguishes the stacks of an account.
    """
    from aws_lambda_powertools.metrics import MetricUnit

    metrics, usage, metadata = _metrics(), result.usage, result.message.metadata
    is_failed = result.status == "failed" or not result.stored
    counts = {
        "Turns": int(not result.is_continued),
        "InputTokens": usage.input_tokens - result.usage_before.input_tokens,
        "OutputTokens": usage.output_tokens - result.usage_before.output_tokens,
        "CachedInputTokens": usage.cached_input_tokens - result.usage_before.cached_input_tokens,
        "CacheWriteTokens": usage.cache_write_tokens - result.usage_before.cache_write_tokens,
        "ToolCalls": result.tool_calls,
        "ToolErrors": result.tool_errors,
        "WaitingTurns": int(result.status == "waiting"),
        "CancelledTurns": int(result.status == "cancelled"),
        "FailedTurns": int(is_failed and not isinstance(result.error, NOT_OUR_FAULT)),
        "RejectedTurns": int(isinstance(result.error, ModelRejected)),
    }
    for name, value in counts.items():
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)
    times = {"TurnDuration": "durationMs", "TimeToFirstToken": "firstTokenMs"}
    if result.status == "waiting":
        del times["TurnDuration"]  # reported when the turn ends, without its waiting time
    if result.is_continued:
        del times["TimeToFirstToken"]
    for name, key in times.items():
        if key in metadata:
            metrics.add_metric(name=name, unit=MetricUnit.Milliseconds, value=metadata[key])
    metrics.flush_metrics()


def emit_model_call(purpose: Purpose, usage: Usage) -> None:
    """Print the tokens of a model call for a summary or a name. An answer's tokens are in its turn's metrics."""
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = _metrics()
    name = purpose.capitalize()
    metrics.add_metric(name=f"{name}InputTokens", unit=MetricUnit.Count, value=usage.input_tokens)
    metrics.add_metric(name=f"{name}OutputTokens", unit=MetricUnit.Count, value=usage.output_tokens)
    metrics.flush_metrics()


def emit_refusal(refusal: BudgetExceeded) -> None:
    """Print that a budget has refused a request or a model call."""
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = _metrics()
    name = "RateRefusals" if isinstance(refusal, TooManyRequests) else "BudgetRefusals"
    metrics.add_metric(name=name, unit=MetricUnit.Count, value=1)
    metrics.flush_metrics()


def emit_ending_models(count: int) -> None:
    """Print how many of the deployment's models end soon. Also 0, which ends the alarm."""
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = _metrics()
    metrics.add_metric(name="ModelsEndingSoon", unit=MetricUnit.Count, value=count)
    metrics.flush_metrics()


def emit_refused_field() -> None:
    """Print that a model's API refused a field, which was left out. The log names it."""
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = _metrics()
    metrics.add_metric(name="RefusedFields", unit=MetricUnit.Count, value=1)
    metrics.flush_metrics()


def _metrics() -> "Metrics":
    # Imported after the answer, so that the first byte does not wait for it.
    from aws_lambda_powertools.metrics import Metrics

    return Metrics(
        namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "OmniAgent"),
        # Turns finished by the run function count as the chat function's.
        service=os.environ.get("METRICS_SERVICE_NAME") or os.environ.get("POWERTOOLS_SERVICE_NAME", "omniagent"),
    )
