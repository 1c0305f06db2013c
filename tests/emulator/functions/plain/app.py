"""A plain function: does what the event, or the body of a request, says."""

import base64
import json
import os
import time
from typing import Any


def handler(event: dict[str, Any], context: Any) -> Any:
    body = event.get("body", "{}")
    if event.get("isBase64Encoded"):
        return {"received": base64.b64decode(body).hex(), "event": event}
    order = json.loads(body) if "requestContext" in event else event
    match order.get("do"):
        case "fail":
            raise ValueError("as asked")
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "large":
            return "x" * (7 * 1024 * 1024)
        case "environment":
            return dict(os.environ)
        case "answer":
            return order["answer"]
    return {"event": event, "pid": os.getpid()}
