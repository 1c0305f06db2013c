"""POST /chat through a real process: what its Function URL and API Gateway make of it.

What the routes do is in `tests/http/test_chat_app`, what a turn does in `tests/runner`.
"""

import json
from dataclasses import replace

import pytest

from tests.fixtures.calls import User, kinds
from tests.fixtures.product import Product


@pytest.fixture
def user(product: Product, request: pytest.FixtureRequest) -> User:
    """Somebody new, behind the Function URL or, where the test says so, behind API Gateway."""
    return replace(product.user(), through_api=getattr(request, "param", False))


through_both = pytest.mark.parametrize("user", [False, True], ids=["function-url", "api-gateway"], indirect=True)


@through_both
async def test_each_event_arrives_before_the_model_sends_the_next(product: Product, user: User) -> None:
    with product.wire.held() as gate:
        async with user.asking("[slow:1][echo:Each of these words comes alone]") as answer:
            told = 0
            while chunk := await gate.let_through():
                # The model's next chunk is held until the client has what this one says.
                for delta in deltas(chunk):
                    event = await answer.until("text-delta")
                    assert event["delta"] == delta
                    told += 1
            assert kinds(await answer.rest())[-2:] == ["finish", "data-session"]
    assert told > 3
    assert answer.text == "Each of these words comes alone"


def deltas(chunk: bytes) -> list[str]:
    """What a chunk of the Responses API adds to the text."""
    events = [json.loads(line.removeprefix(b"data: ")) for line in chunk.splitlines() if line.startswith(b"data: {")]
    return [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
