"""The head of a streamed answer."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.emulator.url_response import BadResponse, Head, Prelude

DOCUMENT = json.dumps({"statusCode": 201, "headers": {"X-A": "é"}, "cookies": ["a=1"]}).encode()
BODY = b"\x00body" + bytes(9)
ANSWER = DOCUMENT + bytes(8) + BODY


@given(st.lists(st.integers(0, len(ANSWER)), max_size=12))
def test_it_is_found_wherever_the_chunks_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(ANSWER)]
    chunks = iter([ANSWER[start:end] for start, end in pairwise(edges)])
    prelude = Prelude()
    found: tuple[Head, bytes] | None = None
    while found is None:
        found = prelude.feed(next(chunks))
    head, body = found
    assert head.status == 201
    assert ("x-a", "é") in head.headers
    assert ("set-cookie", "a=1") in head.headers
    assert body + b"".join(chunks) == BODY


def test_a_prelude_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadResponse):
        Prelude().feed(b"nonsense" + bytes(8) + b"body")
