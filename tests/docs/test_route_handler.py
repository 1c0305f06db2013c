"""The example's route handler signs for its user, against an emulated deployment in iam mode."""

import asyncio
import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from omniagent.session.ids import new_id, session_key, user_id_of
from tests.fixtures.endings import PATIENCE_SECONDS
from tests.fixtures.nextjs_example import COPY, EXAMPLE
from tests.fixtures.product import Product

DRIVER = "route_driver.mjs"


async def call(product: Product, *requests: dict[str, Any], as_shipped: bool = False) -> list[dict[str, Any]]:
    """Let the handler answer the requests of a page, one after the other."""
    shutil.copy(EXAMPLE.parents[1] / "tests" / "docs" / DRIVER, COPY / DRIVER)
    (COPY / "credentials").write_text("[web]\naws_access_key_id = web-backend\naws_secret_access_key = secret\n")
    environment = {
        "PATH": os.environ["PATH"],
        # Not from the environment: the SDK's chain finds them in a profile, as it would in a container.
        "AWS_SHARED_CREDENTIALS_FILE": str(COPY / "credentials"),
        "AWS_PROFILE": "web",
        "AWS_REGION": "us-east-1",
        "OMNIAGENT_CHAT_URL": f"{product.emulator.url_of('chat')}/",
        "OMNIAGENT_SESSIONS_URL": product.emulator.url_of("sessions"),
    }
    done = await asyncio.to_thread(
        subprocess.run,
        ["node", DRIVER, str(EXAMPLE / "iam" / "route.ts"), *(["as-shipped"] if as_shipped else [])],
        cwd=COPY,
        env=environment,
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


@pytest.mark.usefixtures("type_errors")  # which installs the packages
async def test_the_route_handler_signs_for_its_user_and_refuses_foreign_pages(product: Product) -> None:
    session, ada = new_id(), f"ada-{new_id()}"
    page = {
        "x-demo-user": ada,
        "content-type": "application/json",
        "x-user-id": "eve",
        "sec-fetch-site": "same-origin",
    }
    question = json.dumps({"session_id": session, "query": "[echo:Signed]"})
    refund = json.dumps({"query": '[tool:refund {"order": 1001, "euros": 80}]'})
    own = {"x-demo-user": ada, "content-type": "application/json", "host": "app.example"}
    origins = [
        {"origin": "https://app.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {},
    ]
    streamed, asked, missing, listed, stranger, *pages = await call(
        product,
        {"method": "POST", "path": "/chat", "headers": page, "body": question},
        {"method": "POST", "path": "/chat", "headers": page | {"x-ai-sdk": "5"}, "body": refund},
        {"method": "GET", "path": f"/chat/{new_id()}/stream", "headers": page},
        {"method": "GET", "path": "/sessions?search=signed", "headers": page},
        {"method": "GET", "path": "/sessions", "headers": {}},
        *({"method": "POST", "path": "/chat", "headers": own | each, "body": "{}"} for each in origins),
    )
    assert [answer["status"] for answer in pages] == [422, *[403] * 5]
    assert (streamed["status"], streamed["headers"]["x-session-id"]) == (200, session)
    assert streamed["headers"]["x-vercel-ai-ui-message-stream"] == "v1"
    assert streamed["body"].endswith("data: [DONE]\n\n")
    assert '"type":"data-approval-request"' in asked["body"], "in the format of the page's AI SDK"
    assert missing["status"] == 204
    assert [item["id"] for item in json.loads(listed["body"])["sessions"]] == [session]
    assert (stranger["status"], json.loads(stranger["body"])["code"]) == (401, "unauthenticated")
    # The session is Ada's: the page's own x-user-id counts for nothing.
    owner = session_key(user_id_of(f"user:{ada}"), session)
    assert product.database.sessions.count_documents({"_id": owner}) == 1


@pytest.mark.usefixtures("type_errors")
async def test_the_route_handler_answers_nobody_until_the_team_names_users(product: Product) -> None:
    request = {"method": "GET", "path": "/sessions", "headers": {"x-demo-user": "ada"}}
    [answer] = await call(product, request, as_shipped=True)
    assert answer == {"error": "iam/route.ts: write userOf, which says who the user of a request is"}
