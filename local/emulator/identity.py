"""The caller of a Function URL. A signature is required but not verified; its access key is trusted."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from local.cloudformation import ACCOUNT
from local.emulator.http import Exchange

_CREDENTIAL = re.compile(r"AWS4-HMAC-SHA256 .*Credential=([^/,\s]+)/[^,\s]+/aws4_request\b")


@dataclass(frozen=True)
class Identity:
    """An IAM identity as Lambda describes it to a function."""

    access_key: str
    account: str
    user_id: str
    user_arn: str

    def document(self) -> dict[str, str | None]:
        """Return `requestContext.authorizer.iam`."""
        return {
            "accessKey": self.access_key,
            "accountId": self.account,
            "callerId": self.user_id,
            "cognitoIdentity": None,
            "principalOrgId": None,
            "userArn": self.user_arn,
            "userId": self.user_id,
        }


IdentityOf = Callable[[str], Identity]
"""Finds the identity behind an access key."""


def user_named_by_key(access_key: str) -> Identity:
    """Return an IAM user whose name is the access key."""
    return Identity(access_key, ACCOUNT, access_key, f"arn:aws:iam::{ACCOUNT}:user/{access_key}")


def access_key_of(exchange: Exchange) -> str | None:
    """Return the access key of a request's signature, in its header or its query; None without a signature."""
    if match := _CREDENTIAL.match(exchange.header("authorization")):
        return match[1]
    query = exchange.query
    if query.get("X-Amz-Algorithm") == "AWS4-HMAC-SHA256" and "X-Amz-Signature" in query:
        return query.get("X-Amz-Credential", "").split("/")[0] or None
    return None
