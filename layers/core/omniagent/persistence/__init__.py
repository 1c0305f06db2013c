"""MongoDB: documents, connection, sessions and the catalog of them."""

from omniagent.persistence.lean_pymongo import skip_pyopenssl

skip_pyopenssl()
