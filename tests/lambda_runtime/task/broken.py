"""A function that cannot be loaded."""

raise RuntimeError("no luck at import")
