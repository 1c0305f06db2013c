"""What every test may use."""

import gc
import signal

from hypothesis import settings

from tests.fixtures.examples import THOROUGH, examples

# What is imported and collected is no garbage: looking through it again and again costs each worker seconds.
gc.disable()

pytest_plugins = [
    "tests.fixtures.measured",
    "tests.fixtures.workers",
    "tests.fixtures.guard",
    "tests.fixtures.services",
    "tests.fixtures.conversation",
    "tests.fixtures.jobs",
    "tests.fixtures.built",
    "tests.fixtures.stack",
]

# A busy machine is no failure: no property has a time limit of its own. Every run tries the same examples, but a
# thorough one.
settings.register_profile("patient", deadline=None, derandomize=THOROUGH == 1, max_examples=examples(25))
settings.load_profile("patient")

# A job in the background inherits an ignored SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
