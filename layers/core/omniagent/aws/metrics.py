"""CloudWatch metrics of a turn, as one EMF line on standard output."""

from omniagent.ai.turn import RunResult

NAMESPACE = "OmniAgent"
SERVICE = "chat"


def emit_turn(result: RunResult) -> None:
    """Print the turn's metrics. The template's alarms and dashboard are built on these names."""
    # After the answer, so that the first byte does not wait for the import.
    from aws_lambda_powertools.metrics import Metrics, MetricUnit

    metrics = Metrics(namespace=NAMESPACE, service=SERVICE)
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
