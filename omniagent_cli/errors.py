"""`CommandError`: what ends a command, shown to the person at the terminal."""


class CommandError(Exception):
    """A command cannot do its work. The message says what to do."""
