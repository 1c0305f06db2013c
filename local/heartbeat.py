"""The journal of a session's running turn, as another process sees it: the sign of life of the process that answers."""

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from omniagent.session.ids import session_key, user_id_of

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@dataclass(frozen=True)
class Heartbeat:
    """`runs` counts the processes that wrote to the journal `of`: more than one, and the turn was taken over."""

    of: str
    records: int
    runs: int
    age_ms: int


def heartbeat(dynamodb: "DynamoDBClient", table: str, user: str, session_id: str) -> dict[str, Any] | None:
    """Read the newest journal of a session. Blocks. None if there is none."""
    answer = dynamodb.query(
        TableName=table,
        KeyConditionExpression="session_id = :session AND begins_with(#item, :journal)",
        ProjectionExpression="#item, #run, #at",
        ExpressionAttributeNames={"#item": "item", "#run": "run", "#at": "at"},
        ExpressionAttributeValues={
            ":session": {"S": session_key(user_id_of(user), session_id)},
            ":journal": {"S": "journal#"},
        },
    )
    chunks = [
        (item["item"]["S"].rpartition("#")[0], item["run"]["S"], float(item["at"]["N"])) for item in answer["Items"]
    ]
    if not chunks:
        return None
    newest, _, at = max(chunks, key=lambda chunk: chunk[2])
    of_turn = [run for journal, run, _ in chunks if journal == newest]
    return asdict(Heartbeat(newest, len(of_turn), len(set(of_turn)), max(0, int((time.time() - at) * 1000))))
