"""The OpenAPI documents tell the truth: whatever is sent, the answer is one that they describe."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.fixtures.examples import examples
from tests.fixtures.problems import check_problem
from tests.fixtures.world import User, World
from tests.security.fuzz import BOUNDED
from tests.security.routes import DOCUMENTS, ROUTES, Route, owner_for

FEW = settings(BOUNDED, max_examples=examples(6))
# A route that takes nothing cannot be given anything wrong.
WRONG_WAYS = [route for route in ROUTES if route.path not in ("/users/me", "/usage")]
CASES = [*product(ROUTES, [GenerationMode.POSITIVE]), *product(WRONG_WAYS, [GenerationMode.NEGATIVE])]

# Good data may still be refused: a body is bounded in ways that no schema tells (bytes, nesting, 64-bit numbers), the
# last message of a history must be the user's, a cursor must be one that was handed out.
UNCHECKED: list[CheckFunction] = [positive_data_acceptance]


@pytest.fixture(scope="module")
def documents(world: World) -> dict[str, OpenApiSchema]:
    client = world.client()
    urls = {name: f"http://{name}{DOCUMENTS[name]}" for name in world.functions}
    documents = {name: client.get(url).json() for name, url in urls.items()}
    for document in documents.values():
        assert document.pop("security")  # the world signs: credentials that are made up would replace its own
        del document["components"]["securitySchemes"]
    return {name: schemathesis.openapi.from_dict(document) for name, document in documents.items()}


def send(user: User, route: Route, case: Case[Any]) -> httpx.Response:
    """Send a case as schemathesis would, through the function's handler."""
    made = case.as_transport_kwargs(base_url=f"http://{route.function}")
    request: Any = requests.Request(**made).prepare()
    response = user.http.request(request.method, request.url, headers=request.headers, content=request.body)
    response.elapsed = timedelta(0)  # schemathesis asks for it, and no time has passed on a network
    return response


def test_the_document_says_what_is_answered_while_a_session_is_deleted(world: World, user: User) -> None:
    body = {"id": user.session}
    assert user.call("POST", "/sessions", json=body).status_code == 201
    world.database.sessions.update_one({"_id": user.key}, {"$set": {"erased_at": datetime.now(UTC)}})
    problem = check_problem(user.call("POST", "/sessions", json=body))
    document = user.call("GET", "/openapi.json").json()
    described = document["paths"]["/sessions"]["post"]["responses"]
    assert problem["code"] in described[str(problem["status"])]["description"]


@pytest.mark.parametrize(("route", "mode"), CASES, ids=str)
def test_every_answer_is_one_that_the_document_describes(
    route: Route, mode: GenerationMode, world: World, ada: User, documents: dict[str, OpenApiSchema]
) -> None:
    user = owner_for(route, world, ada)
    [_, answer] = user.messages()
    operation = documents[route.function][route.path][route.method]
    known = {"session_id": user.session, "message_id": answer["id"]}
    known = {name: value for name, value in known.items() if f"{{{name}}}" in route.path}
    strategies = [operation.as_strategy(generation_mode=mode)]
    if mode is GenerationMode.POSITIVE:
        # Half of the requests are for what is there.
        strategies.append(operation.as_strategy(generation_mode=mode, path_parameters=known))
    answers: Counter[int] = Counter()

    @FEW
    @given(case=st.one_of(strategies))
    def check(case: Case[Any]) -> None:
        response = send(user, route, case)
        answers[response.status_code] += 1
        # There are no queues here, and the document says what is answered then.
        is_unqueued = response.status_code == 503 and response.json()["code"] in ("no_queue", "no_run_queue")
        unchecked = [*UNCHECKED, not_a_server_error] if is_unqueued else UNCHECKED
        case.validate_response(response, excluded_checks=unchecked)
        if response.status_code >= 400:
            check_problem(response)

    check()
    if mode is GenerationMode.POSITIVE:
        assert answers[route.owner], f"nothing was answered as an owner is: {answers}"


def test_each_route_has_a_name_and_each_of_its_errors_the_shape_of_a_problem(world: World) -> None:
    for name in world.functions:
        document = world.client().get(f"http://{name}{DOCUMENTS[name]}").json()
        assert [server["url"] for server in document["servers"]] == ["/"]
        operations = [operation for path in document["paths"].values() for operation in path.values()]
        assert len({operation["operationId"] for operation in operations}) == len(operations)
        for operation in operations:
            refusals = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
            assert {"401", "403", "422", "500", "503"} <= refusals.keys()
            for refusal in refusals.values():
                [(kind, content)] = refusal["content"].items()
                assert kind == "application/problem+json"
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
