"""What a deploy of the template comes to."""

from collections.abc import Callable, Iterator

import pytest

from local.cloudformation import Document
from tests.sam.builds import Translator


@pytest.fixture(scope="session")
def translator(sam: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """SAM's own translator."""
    translator = Translator(tmp_path_factory.mktemp("expanded"))
    yield translator
    translator.close()


@pytest.fixture(scope="session")
def deploy(translator: Translator) -> Callable[..., Document]:
    """Returns the CloudFormation that a deploy with some parameters comes to, made once for each set of them."""
    made: dict[frozenset[tuple[str, str]], Document] = {}

    def deployed(**parameters: str) -> Document:
        key = frozenset(parameters.items())
        if key not in made:
            made[key] = translator.expand(parameters)
        return made[key]

    return deployed
