"""What every test may use."""

import gc
import signal
import ssl
from functools import cache

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

# Each HTTP client reads the certificates of the world, which takes longer than many a test: they are read once.
ssl.create_default_context = cache(ssl.create_default_context)  # type: ignore[assignment]

# A job in the background inherits an ignored SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
