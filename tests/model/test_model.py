import pytest

from tests.model.explorer import Bounds, Explorer
from tests.model.mutants import MUTANTS, find


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(1, 1, 0, 0, 0),
        Bounds(1, 0, 0, 0, 1),
        Bounds(1, 0, 0, 0, 0, 1),
        Bounds(1, 0, 1, 0, 0, busy=("queue", "queue")),
    ],
)
def test_no_interleaving_breaks_a_promise(bounds: Bounds) -> None:
    assert Explorer(bounds).explore() > 1_000


@pytest.mark.parametrize("name", MUTANTS)
def test_explorer_finds_mutant(name: str) -> None:
    assert find(name, 150_000)
