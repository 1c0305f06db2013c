"""Wheels and environments, each made once."""

from pathlib import Path

import pytest

from tests.package.wheels import VERSION, Environment, build, copy_sources, new_environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def next_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a later version: one of our files is new in it, one changed, one gone."""
    source = copy_sources(tmp_path_factory.mktemp("source"))
    package = source / "layers/core/omniagent/__init__.py"
    package.write_text(VERSION.sub('__version__ = "9.0.0"', package.read_text()))
    handler = source / "functions/chat/app.py"
    handler.write_text(handler.read_text().replace('"""The chat function:', '"""The chat function of 9.0.0:'))
    (source / "functions/summary/app.py").rename(source / "functions/summary/handlers.py")
    template = source / "template.yaml"
    template.write_text(template.read_text().replace("summary.app.handler", "summary.handlers.handler"))
    files = source / "omniagent_cli/project_files.py"
    files.write_text(files.read_text().replace("functions/summary/app.py", "functions/summary/handlers.py"))
    return build(tmp_path_factory.mktemp("next_wheel"), source)


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel alone."""
    return new_environment(tmp_path_factory.mktemp("bare") / "venv", str(wheel))
