"""Whatever breaks inside, the caller reads a fixed text and a request id, and the log has the rest under that id."""

import pytest

from local.model import OfflineModel
from omniagent import errors
from omniagent.protocol import sse
from tests.fixtures.world import open_world


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
