"""A function that fails at import."""

raise RuntimeError("broken at import")
