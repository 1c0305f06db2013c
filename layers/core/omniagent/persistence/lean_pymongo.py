"""Keeps PyMongo's search for PyOpenSSL off the cold start.

It imports `cryptography` (a twentieth of the chat function's imports) and only then finds that service_identity is
missing, without which PyOpenSSL is not used. The async client never uses it.
"""

import sys
from importlib.util import find_spec


def skip_pyopenssl() -> None:
    """Tell PyMongo at once what it would find out: there is no PyOpenSSL. Call it before PyMongo is imported."""
    if find_spec("service_identity") is None:
        sys.modules.setdefault("pymongo.pyopenssl_context", None)  # type: ignore[arg-type]  # None blocks an import
