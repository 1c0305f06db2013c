"""MongoDB: documents, connection, sessions and the catalog of them."""
