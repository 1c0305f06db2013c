"""SnapStart: one process is frozen after its start and restored many times.

Every copy has the same memory, so what draws numbers must be seeded again. Open sockets and credentials of the original
are dead. On other functions the hooks are registered and never called.
"""

import os
import random
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from omniagent.aws.json_api import process_credentials
from omniagent.lambda_runtime import event_loop
from omniagent.tracing.instrumentor import disconnect_traces

try:
    import snapshot_restore_py as hooks  # type: ignore[import-untyped]  # it ships no types
except ImportError:  # it comes with awslambdaric; a server without Lambda may lack it
    hooks = None


def before_snapshot(close: Callable[[], Coroutine[Any, Any, None]], load: Callable[[], None] | None = None) -> None:
    """Before the snapshot is taken, import with `load` what requests need, and close connections with `close`."""
    if hooks is None:
        return
    # The last one that is registered runs first.
    hooks.register_before_snapshot(disconnect_traces)
    hooks.register_before_snapshot(lambda: event_loop.run(close()))
    if load is not None:
        hooks.register_before_snapshot(load)


def after_restore() -> None:
    """Make this copy of the process differ from every other one. Registered by the import of this module.

    Our ids need none of this: `uuid4` and `secrets` read the kernel's generator.
    """
    random.seed()
    # The keys of TLS come from OpenSSL's own generator, which seeds itself again only where the process id changed.
    ssl.RAND_add(os.urandom(32), 32.0)
    _renew_object_ids()
    process_credentials.forget()


def _renew_object_ids() -> None:
    """Give BSON's ids a new random part. It draws one at its import, and again only where the process id changed.

    Documents of ours have ids of their own; these are for collections that a team's tools write.
    """
    if "bson.objectid" in sys.modules:
        sys.modules["bson.objectid"].ObjectId._pid = -1  # noqa: SLF001 - it has no public way


if hooks is not None:
    hooks.register_after_restore(after_restore)
