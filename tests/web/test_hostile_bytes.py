"""The browser's decoders and Python's on the same damaged bytes; benchmarks/fuzz_browser.py does more."""

import sys

import pytest

from .by_node import WEB, node


@pytest.fixture(scope="module")
def fuzzing():
    """benchmarks/fuzz_browser.py; it stands at the head of the path what a test finds there anyway."""
    node()
    before = list(sys.path)
    sys.path.insert(0, str(WEB.parent))
    try:
        from benchmarks import fuzz_browser
    finally:
        sys.path[:] = before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz_browser, "SLOWEST_S", fuzz_browser.LONGEST_S)  # of a machine that has other work
        yield fuzz_browser


@pytest.fixture(scope="module")
def running(fuzzing):
    new_node = fuzzing.Node()
    yield new_node
    new_node.close()


def test_damaged_bytes_are_refused_in_the_house_s_words_by_both_sides_or_read_alike(fuzzing, running):
    for pair in fuzzing.pairs():
        came = fuzzing.fuzz(pair, running, 200 if pair.share > 0.1 else 5, seed=1)
        assert came.failed == 0, (pair.name, came.first)
        assert came.inputs > 0


def test_what_only_one_side_reads_is_found(fuzzing, running):
    def stricter(data):
        raise ValueError("never")

    pair = fuzzing.Pair("topic", (b"fl/v1/d/pi-1/up/hello",), stricter, errors=(ValueError,))
    came = fuzzing.fuzz(pair, running, 300, seed=0)
    assert 0 < came.failed == came.inputs - came.refused
    assert "Node reads what Python refuses: never" in came.first[0]
