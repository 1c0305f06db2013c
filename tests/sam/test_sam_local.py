"""`sam local invoke` of events/README.md, as far as SAM goes without Docker: to the environment of a container."""

import json
import re

from local.template import ROOT
from omniagent.settings import Settings
from tests.sam.builds import Sam

EXAMPLE = ROOT / "parameters" / "local.example.json"
COMMAND = r"`sam local invoke (\w+) --event (events/[\w-]+\.json)`"


def test_every_variable_of_the_file_reaches_the_functions(sam: Sam) -> None:
    given = json.loads(EXAMPLE.read_text())
    environments = sam.local(given)["environments"]
    assert set(environments) == {"ChatFunction", "SessionsFunction", "SummaryFunction", "RunFunction"}
    for variables in environments.values():
        assert {name: variables[name] for name in given["Parameters"]} == given["Parameters"]
        settings = Settings.from_env(variables)
        assert settings.mongodb_uri == given["Parameters"]["MONGODB_URI"]
        assert (settings.mongodb_secret_arn, settings.turns_table, settings.auth_mode) == ("", "", "iam")


def test_sam_finds_the_file_by_itself_and_git_does_not(sam: Sam) -> None:
    options = sam.local({"Parameters": {}})["options"]
    assert options["env_vars"] == "parameters/local.json"
    assert "parameters/local.json" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_readme_s_command_names_a_function_and_an_event() -> None:
    readme = re.sub(r"\s+", " ", (ROOT / "events/README.md").read_text())
    found = re.findall(COMMAND, readme)
    assert found
    for function, event in found:
        assert function == "ChatFunction"
        assert json.loads((ROOT / event).read_text())["version"] == "2.0"
