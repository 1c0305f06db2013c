"""`DynamoTable`: the turn table's calls, errors, keys and numbers, shared by everything that is stored in it."""

from typing import Any

from omniagent.aws.http_pool import AwsRefused, AwsUnreachable
from omniagent.aws.json_api import DYNAMODB, AwsJson
from omniagent.errors import RegistryMisconfigured, RegistryUnavailable
from omniagent.tracing import current_span
from omniagent.tracing.attributes import DB_COLLECTION

_MISCONFIGURED = frozenset(
    {
        "AccessDeniedException",
        "IncompleteSignatureException",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "NoCredentials",
        "ResourceNotFoundException",
        "UnrecognizedClientException",
        "UntrustedCredentialsEndpoint",
    }
)
_LOST = "ConditionalCheckFailedException"


class DynamoTable:
    """One DynamoDB table. Translates its errors into the package's."""

    def __init__(self, name: str, api: AwsJson | None = None) -> None:
        self._name = name
        self._api = api or AwsJson(DYNAMODB)

    async def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call DynamoDB, as `AwsJson.call` does. A failed condition raises nothing: it returns `lost` and the item."""
        current_span().set(DB_COLLECTION, self._name)
        try:
            return await self._api.call(operation, TableName=self._name, **arguments)
        except AwsRefused as exc:
            if exc.code == _LOST:
                return {"lost": True, "item": exc.answer.get("Item")}
            if exc.code in _MISCONFIGURED:
                raise RegistryMisconfigured(f"TURNS_TABLE {self._name}: {operation}: {exc}") from exc
            raise RegistryUnavailable(f"DynamoDB {operation}: {exc}") from exc
        except AwsUnreachable as exc:
            raise RegistryUnavailable(f"DynamoDB {exc}") from exc

    async def keys_of(self, owner: str, **options: Any) -> dict[str, Any]:
        """Read one page of the keys of the items under a session's key or a user's id."""
        return await self.call(
            "Query",
            ConsistentRead=True,
            KeyConditionExpression="session_id = :owner",
            ProjectionExpression="session_id, #item",
            ExpressionAttributeNames={"#item": "item"},
            ExpressionAttributeValues={":owner": {"S": owner}},
            **options,
        )

    async def aclose(self) -> None:
        await self._api.aclose()


def item_key(session: str, item: str) -> dict[str, Any]:
    return {"session_id": {"S": session}, "item": {"S": item}}


def as_number(value: float, *, whole: bool = False) -> dict[str, str]:
    return {"N": str(int(value)) if whole else f"{value:.3f}"}
