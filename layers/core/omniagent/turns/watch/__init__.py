"""Who finishes a turn: takeover, stop, sweep and deletion."""
