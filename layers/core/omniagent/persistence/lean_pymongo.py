"""Keeps PyMongo's search for PyOpenSSL off the cold start.

PyMongo imports `cryptography` (5 % of the chat function's import time) before it finds that service_identity is
missing, without which it does not use PyOpenSSL. The async client never uses it.
"""

import sys
from importlib.util import find_spec


def skip_pyopenssl() -> None:
    """Block PyMongo's import of PyOpenSSL if it could not be used. Call it before PyMongo is imported."""
    if find_spec("service_identity") is None:
        sys.modules.setdefault("pymongo.pyopenssl_context", None)  # type: ignore[arg-type]  # None blocks an import
