"""The stream the client reads: typed events and their encoding as server-sent events."""
