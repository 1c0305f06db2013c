"""The journal of a turn: typed records with one `fold()`, a reader of the live turn and a reader of what is stored."""
