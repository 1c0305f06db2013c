"""The offline model."""

from collections.abc import Iterator

import pytest

from local.model import OfflineModel


@pytest.fixture(scope="module")
def model() -> Iterator[OfflineModel]:
    """A model that no other module asks."""
    with OfflineModel() as model:
        yield model
