"""What the fuzzing tests have in common: bounded, and the same examples in every run."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.fixtures.examples import examples

BOUNDED = settings(
    max_examples=examples(30),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # Without explaining: that would run hundreds of turns more to tell of one that failed.
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)

# What has a meaning somewhere on the way: in MongoDB, in a regular expression, in a path, in JSON, in HTML.
LOADED = st.sampled_from(
    [
        *("", "\0", "$where", "$gt", "a.b", "__proto__", "../../etc/passwd", ".*", "(a+)+$", "👩\u200d👧", "é" * 40),
        *("[fail:500]", "[break]", "[tool:calculator {}]", "{}", "null", "<script>", "%00", "data: [DONE]\n\n", "\r\n"),
    ]
)
TEXT = st.text(max_size=20) | LOADED
SCALAR = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | TEXT
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
