"""Trace and span ids from the operating system. Imported only by `configure_tracing`: it imports the SDK."""

import os

from opentelemetry.sdk.trace.id_generator import IdGenerator


class SystemIdGenerator(IdGenerator):
    """Generates ids that no clone of this process repeats.

    The SDK's own generator uses `random`, whose state is part of a SnapStart snapshot: all processes restored from one
    would generate the same ids.
    """

    def generate_span_id(self) -> int:
        return _random_id(8)

    def generate_trace_id(self) -> int:
        return _random_id(16)

    def is_trace_id_random(self) -> bool:
        return True


def _random_id(size: int) -> int:
    """Return a random number of `size` bytes. Zero marks an invalid id."""
    return int.from_bytes(os.urandom(size)) or _random_id(size)
