"""What no caller may read, and what every refusal looks like."""

import re
from typing import Any

import httpx

# Where code lives, what it is called, and how Python tells of a failure.
_INSIDE = re.compile(
    r"Traceback|File \"|\.py\b|/(?:opt|var|home|usr|tmp|work)/|omniagent\.\w|site-packages"
    r"|\b[A-Z]\w*(?:Error|Exception|Warning)\b|pymongo|botocore|pydantic|bson"
)
_FIELDS = {"type", "title", "status", "detail", "code", "request_id"}


def check_tells_nothing(text: str) -> None:
    """Hold what a caller reads against what is inside."""
    found = _INSIDE.search(text)
    assert found is None, f"{found[0]!r} leaks in {text[:500]}"


def check_problem(response: httpx.Response) -> dict[str, Any]:
    """Hold a refusal against DESIGN.md section 4, and return it."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = response.json()
    assert problem.keys() == _FIELDS
    assert problem["status"] == response.status_code
    assert problem["request_id"] == response.headers["x-request-id"]
    check_tells_nothing(response.text)
    return problem
