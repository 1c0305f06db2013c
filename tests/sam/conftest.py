"""What a deploy of the build comes to."""

from collections.abc import Callable

import pytest

from local.cloudformation import Document
from tests.sam.builds import Build, expand


@pytest.fixture(scope="session")
def deploy(lambda_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Document]:
    """Returns the CloudFormation that a deploy with some parameters comes to, made once for each set of them."""
    made: dict[frozenset[tuple[str, str]], Document] = {}

    def deployed(**parameters: str) -> Document:
        key = frozenset(parameters.items())
        if key not in made:
            into = tmp_path_factory.mktemp("expanded") / "template.json"
            made[key] = expand(lambda_build.template, into, **parameters)
        return made[key]

    return deployed
