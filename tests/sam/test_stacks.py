"""`make stacks`: the expanded template can be created, and each form has what it should."""

import pytest

from tests.sam.builds import REQUIRED, Sam
from tests.sam.stacks import FORMS, Made, create, production


def made(sam: Sam, given: dict[str, str]) -> Made:
    return create(sam.expanded(given), {**REQUIRED, **given})


@pytest.mark.parametrize("form", ["the defaults", "REST API, domain, WAF"])
def test_a_stack_is_created_with_the_stages_of_its_front(form: str, sam: Sam) -> None:
    stack = made(sam, FORMS[form])
    assert stack.status == "CREATE_COMPLETE"
    assert {"ChatUrl", "SessionsUrl", "Dashboard"} <= stack.outputs.keys()
    stages = [item["StageName"] for item in stack.recorded.values() if "StageName" in item]
    assert stages == (["live"] if "Front" in FORMS[form] else [])


def test_the_shipped_production_stage_is_created_with_a_canary(sam: Sam) -> None:
    stack = made(sam, production())
    assert stack.status == "CREATE_COMPLETE"
    assert stack.kinds["AWS::CodeDeploy::DeploymentGroup"] >= 4
