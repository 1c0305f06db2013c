"""MongoDB: documents, connection, sessions and the catalog of them."""

import sys
from importlib.util import find_spec

# PyMongo imports `cryptography` (5 % of the chat function's import time) before it finds that service_identity is
# missing, without which it does not use PyOpenSSL. The async client never uses it. None blocks the import.
if find_spec("service_identity") is None:
    sys.modules.setdefault("pymongo.pyopenssl_context", None)  # type: ignore[arg-type]
