"""What every test may use."""

import signal

from hypothesis import settings

pytest_plugins = [
    "tests.fixtures.workers",
    "tests.fixtures.guard",
    "tests.fixtures.services",
    "tests.fixtures.conversation",
    "tests.fixtures.built",
    "tests.fixtures.stack",
]

# A busy machine is no failure: no property has a time limit of its own.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

# A job in the background inherits an ignored SIGINT, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
