"""Whatever breaks inside, the caller reads a fixed text and a request id, and the log has the rest under that id."""

import httpx
import pytest

from local.aws import Aws
from local.model import OfflineModel
from omniagent import errors
from omniagent.protocol import sse
from tests.fixtures.problems import check_problem
from tests.fixtures.world import open_world


def told(response: httpx.Response, kind: type[errors.OmniAgentError]) -> None:
    problem = check_problem(response)
    assert (problem["status"], problem["code"], problem["detail"]) == (kind.status, kind.code, kind.public)
    assert ("retry-after" in response.headers) is (kind.retry_after is not None)


@pytest.mark.usefixtures("local_aws")
def test_table_of_turns_that_is_missing_is_logged_and_runs_no_tool(
    model: OfflineModel, mongod: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_world(mongod, model.base_url, turns_table="no-such-table", lease_seconds=2.0) as world:
        user = world.user()
        assert user.ask()[-1]["data"]["status"] == "complete"
        failed = user.post({"session_id": user.session, "query": '[tool:calculator {"expression": "1 + 2"}]'})
        events = list(sse.decode(failed.content))
        assert events[-1] == {"type": "error", "errorText": errors.RegistryMisconfigured.public}
        assert "no-such-table" not in failed.text
        assert "no-such-table" in caplog.text


def test_a_secret_that_is_missing(model: OfflineModel, mongod: str, local_aws: Aws) -> None:
    arn = local_aws.put_secret("present", "x").replace("present", "absent")
    with open_world(mongod, model.base_url, mongodb_secret_arn=arn) as world:
        user = world.user()
        for response in (user.post({"query": "Hello"}), user.call("GET", "/sessions")):
            told(response, errors.ConfigurationError)
            assert "absent" not in response.text
