"""What every test may use."""

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
