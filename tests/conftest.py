"""What every test may use."""

pytest_plugins = [
    "tests.fixtures.guard",
    "tests.fixtures.services",
    "tests.fixtures.conversation",
    "tests.fixtures.built",
    "tests.fixtures.stack",
]
