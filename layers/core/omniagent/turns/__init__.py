"""The running turn of a session: its lease, its stop flag, its chunk log."""
