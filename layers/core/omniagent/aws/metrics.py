"""CloudWatch metrics of a turn, as one EMF line on standard output."""

import os

from omniagent.turns.turn import RunResult


def emit_turn(result: RunResult) -> None:
    """Print the turn's metrics. The template's alarms and dashboard are built on these names.

    Namespace and service are Powertools' variables; the service tells one stack of an account from another.
    """
    # After the answer, so that the first byte does not wait for the import.
    from aws_lambda_powertools.metrics import Metrics, MetricUnit

    metrics = Metrics(
        namespace=os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "OmniAgent"),
        service=os.environ.get("POWERTOOLS_SERVICE_NAME", "omniagent"),
    )
    counts = {
        "Turns": 1,
        "InputTokens": result.usage.input_tokens,
        "OutputTokens": result.usage.output_tokens,
        "ToolCalls": result.tool_calls,
        "ToolErrors": result.tool_errors,
        "CancelledTurns": int(result.status == "cancelled"),
        "FailedTurns": int(result.status == "failed" or not result.stored),
    }
    for name, value in counts.items():
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)
    times = {"TurnDuration": "durationMs", "TimeToFirstToken": "firstTokenMs"}
    for name, key in times.items():
        if key in result.metadata:
            metrics.add_metric(name=name, unit=MetricUnit.Milliseconds, value=result.metadata[key])
    metrics.flush_metrics()
