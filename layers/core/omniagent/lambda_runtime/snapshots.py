"""SnapStart: one process is frozen after its start and restored many times.

Every copy starts with the same memory, so random generators must be seeded again. Open sockets and credentials of the
original are no longer valid. In a function without SnapStart the hooks are registered but never called.
"""

import os
import random
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import snapshot_restore_py as hooks  # type: ignore[import-untyped]  # it ships no types

from omniagent.aws.client import process_credentials
from omniagent.lambda_runtime import event_loop
from omniagent.tracing import disconnect_traces


def before_snapshot(close: Callable[[], Coroutine[Any, Any, None]], load: Callable[[], None] | None = None) -> None:
    """Register hooks for the time before the snapshot: `load` imports modules, then `close` closes connections."""
    # Hooks run in the reverse order of registration.
    hooks.register_before_snapshot(disconnect_traces)
    hooks.register_before_snapshot(lambda: event_loop.run(close()))
    if load is not None:
        hooks.register_before_snapshot(load)


def after_restore() -> None:
    """Seed random generators and drop credentials. Registered by the import of this module.

    Our own ids do not need it: `uuid4` and `secrets` read the kernel's generator.
    """
    random.seed()
    # TLS keys come from OpenSSL's generator, which seeds itself again only if the process id has changed.
    ssl.RAND_add(os.urandom(32), 32.0)
    process_credentials.forget()
    # ObjectId draws its random part at import and if the process id has changed. Our documents have other ids; this is
    # for collections that a team's tools write.
    if "bson.objectid" in sys.modules:
        sys.modules["bson.objectid"].ObjectId._pid = -1  # noqa: SLF001 - there is no public way


hooks.register_after_restore(after_restore)
