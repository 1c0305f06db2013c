"""What a deploy of the template comes to."""

from collections.abc import Callable

import pytest

from local.cloudformation import Document
from tests.sam.builds import Sam

Deploy = Callable[..., Document]


@pytest.fixture(scope="session")
def deploy(sam: Sam) -> Deploy:
    """Returns the CloudFormation that a deploy with some parameters comes to, made once for each set of them."""
    made: dict[frozenset[tuple[str, str]], Document] = {}

    def deployed(**parameters: str) -> Document:
        key = frozenset(parameters.items())
        if key not in made:
            made[key] = sam.expand(parameters)
        return made[key]

    return deployed
