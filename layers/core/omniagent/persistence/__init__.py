"""MongoDB: documents, connection, and the store that holds every query and transaction."""
