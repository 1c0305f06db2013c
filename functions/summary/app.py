"""The summary function: regenerates summaries, from the queue or invoked directly."""

import logging
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext
from pydantic import BaseModel, Field

from omniagent.aws.services import get_services
from omniagent.errors import NotFound, OmniAgentError
from omniagent.lambda_runtime import event_loop
from omniagent.lambda_runtime.snapshots import close_before_snapshot
from omniagent.session.manager import session_key, user_id_of
from omniagent.tracing import SpanKind, bind_context, flush_traces, trace_operation
from omniagent.tracing.logs import bind_request_id
from project import project

logger = logging.getLogger("omniagent.summary")
services = get_services(project)
close_before_snapshot(services.close)
# Failures are logged here, one by one, and reported to the queue: only those come again.
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)


class SummaryRequest(BaseModel):
    """A session by its key, or by its user's client id and the id that the client knows it by."""

    session_id: str = Field(min_length=1, max_length=256)
    user: str | None = None
    rebuild: bool = False

    @property
    def key(self) -> str:
        return self.session_id if self.user is None else session_key(user_id_of(self.user), self.session_id)


def handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Take a batch of the queue, or one request: `{"session_id": "<user id>:<id>", "rebuild": false}`."""
    with bind_request_id(context.aws_request_id):
        try:
            if "Records" in event:
                return process_partial_response(event, _take, processor, context)
            return event_loop.run(regenerate(SummaryRequest.model_validate(event)))
        finally:
            event_loop.run(flush_traces())


def _take(record: SQSRecord) -> None:
    """Serve one message of the queue, after those before it: two for one session must not be paid for twice."""
    try:
        event_loop.run(regenerate(SummaryRequest.model_validate_json(record.body)))
    except Exception:
        logger.exception("A summary failed", extra={"message_id": record.message_id})
        raise


async def regenerate(request: SummaryRequest) -> dict[str, Any]:
    """Bring a summary up to date, and say what was done. A session that is gone needs none."""
    with bind_context(session_id=request.key), trace_operation("summary", kind=SpanKind.CHAIN):
        try:
            runner = await services.runner_of_key(request.key)
            result = await runner.summarize(rebuild=request.rebuild)
        except NotFound:
            return {"session_id": request.key, "status": "not_found"}
        except OmniAgentError as exc:
            await services.recover(exc)
            raise
    status = "summarized" if result.written else "unchanged"
    logger.info("summary is up to date", extra={"status": status, "written": result.written})
    return {"session_id": request.key, "status": status, "end_turn_number": result.end_turn_number}
