"""What the attacks are made on."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from local.model import OfflineModel
from tests.fixtures.function_url import PAYLOADS
from tests.fixtures.world import User, World, open_world


@pytest.fixture(scope="module")
def world(mongod: str, model: OfflineModel) -> Iterator[World]:
    """Both functions, called by a trusted backend that names its users.

    Its requests come through a Function URL and through API Gateway in turn.
    """
    with open_world(mongod, model.base_url) as world:
        yield replace(world, payloads=PAYLOADS)


@pytest.fixture(scope="module")
def ada(world: World) -> User:
    """Somebody who has asked one question. No test deletes anything of it."""
    ada = world.user()
    ada.ask()
    return ada


@pytest.fixture
def user(world: World) -> User:
    """Somebody new."""
    return world.user()
