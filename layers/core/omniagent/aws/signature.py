"""AWS Signature Version 4 of a JSON call. A test compares it with botocore's."""

import hashlib
import hmac
from datetime import datetime

from omniagent.aws.credentials import Credentials

_SIGNED_HEADERS = ("content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target")


def sign(
    headers: dict[str, str], body: bytes, *, service: str, region: str, credentials: Credentials, now: datetime
) -> dict[str, str]:
    """Return the headers of a POST to `/` with the signature added."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {**headers, "x-amz-date": stamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = [name for name in _SIGNED_HEADERS if name in headers]
    listed = "".join(f"{name}:{headers[name]}\n" for name in names)
    request = "\n".join(["POST", "/", "", listed, ";".join(names), hashlib.sha256(body).hexdigest()])
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={';'.join(names)}, Signature={_hmac(key, text).hex()}"
    )
    return headers


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
