"""AWS Signature Version 4: of a POST, and as a bearer token for Bedrock. Tests compare both with AWS's own."""

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

from omniagent.aws.credentials import Credentials

_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_EMPTY_HASH: Final = hashlib.sha256(b"").hexdigest()
_TOKEN_HOST: Final = "bedrock.amazonaws.com"  # noqa: S105 - an address
MAX_TOKEN_SECONDS: Final = 12 * 3600


def sign(
    headers: dict[str, str],
    body: bytes,
    *,
    service: str,
    region: str,
    credentials: Credentials,
    now: datetime,
    path: str = "/",
) -> dict[str, str]:
    """Return the headers of a POST with the signature added."""
    stamp, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{region}/{service}/aws4_request"
    headers = {**headers, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = [name for name in _SIGNED_HEADERS if name in headers]
    listed = "".join(f"{name}:{headers[name]}\n" for name in names)
    digest = hashlib.sha256(body).hexdigest()
    request = "\n".join(["POST", quote(path, safe="/~"), "", listed, ";".join(names), digest])
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={_signature(request, stamp, scope, credentials)}"
    )
    return headers


def bedrock_token(credentials: Credentials, region: str, now: datetime, seconds: int = MAX_TOKEN_SECONDS) -> str:
    """Return a bearer token for Bedrock: a presigned request, valid for as long as the credentials at most."""
    stamp, scope = f"{now:%Y%m%dT%H%M%SZ}", f"{now:%Y%m%d}/{region}/bedrock/aws4_request"
    query = {
        "Action": "CallWithBearerToken",
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
        **({"X-Amz-Security-Token": credentials.token} if credentials.token else {}),
    }
    canonical = urlencode(sorted(query.items()), quote_via=quote, safe="~")
    request = "\n".join(["POST", "/", canonical, f"host:{_TOKEN_HOST}\n", "host", _EMPTY_HASH])
    signed = {**query, "X-Amz-Signature": _signature(request, stamp, scope, credentials), "Version": "1"}
    url = f"{_TOKEN_HOST}/?{urlencode(signed, quote_via=quote, safe='~')}"
    return f"bedrock-api-key-{base64.b64encode(url.encode()).decode()}"


def _signature(request: str, stamp: str, scope: str, credentials: Credentials) -> str:
    """Return the signature of a canonical request."""
    text = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()
