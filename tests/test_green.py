"""`make green` reads its runs from what pytest prints."""

from scripts.green import outcome

COUNTED = "FAILED tests/a.py::test_a - assert 1 == 2\nERROR tests/b.py::test_b\n"


def test_a_run_that_passed_is_green() -> None:
    run = outcome("== 4852 passed, 1 skipped in 400.71s (0:06:40) ==\n", code=0, seconds=410.2, load=8.26)
    assert str(run) == "green: 4852 passed, 0 failed, 1 skipped, 410 s, load 8.3"


def test_failures_and_errors_are_named_and_red() -> None:
    run = outcome(f"{COUNTED}== 1 failed, 4850 passed, 1 error in 9.1s ==\n", code=2, seconds=1, load=0)
    assert run.failures == ("tests/a.py::test_a", "tests/b.py::test_b")
    assert (run.passed, run.failed, run.green) == (4850, 2, False)


def test_a_suite_that_ended_with_an_error_or_never_began_is_red() -> None:
    assert not outcome("== 4852 passed in 400.71s ==\n", code=2, seconds=1, load=0).green
    assert not outcome("make: *** [Makefile:33: .uv/bin/uv] Error 1", code=2, seconds=1, load=0).green
    assert not outcome("", code=0, seconds=1, load=0).green
