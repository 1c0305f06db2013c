"""The turns of a session. Read `state.py` first; `engine` runs turns, `journal` records them, `watch` finishes them."""
