from pathlib import Path

import pytest

from . import vectors
from .vectors import Bounds, settled

BOUNDS = Bounds({"near": 1e-3}, frozenset({"levels"}))


@pytest.mark.parametrize("writer", vectors.WRITERS, ids=lambda path: path.stem)
def test_committed_vectors_are_what_python_writes(writer: Path) -> None:
    committed = vectors.target(writer)
    assert committed.exists(), f"{committed} is missing: python -m tests.web.vectors"
    assert committed.read_text("utf-8") == vectors.text_of(writer), (
        "run python -m tests.web.vectors, and look"
    )


def test_every_file_of_vectors_has_its_writer() -> None:
    written = {vectors.target(writer) for writer in vectors.WRITERS}
    assert set(vectors.FOLDER.rglob("*.json")) == written


def test_only_floats_whose_tolerance_is_stated_may_differ_from_those_committed() -> None:
    committed = {"near": [2.0, {"deep": 0.5}], "exact": 2.0, "count": 3}
    assert (
        settled({"near": [2.001, {"deep": 0.5009}], "exact": 2.0, "count": 3}, committed, BOUNDS) == committed
    )
    for now in (
        committed | {"near": [2.003, {"deep": 0.5}]},
        committed | {"near": [2.0, {"deep": 0.5}, 0.0]},
        committed | {"near": [2, {"deep": 0.6}]},
        committed | {"exact": 2.0000000000000004},
        committed | {"count": 4},
    ):
        assert settled(now, committed, BOUNDS) == now


def test_of_rounded_bytes_one_in_five_hundred_may_be_off_by_one() -> None:
    def settles(*off: int) -> bool:
        now = {"levels": (bytes(50 + step for step in off) + bytes([50] * (1000 - len(off)))).hex()}
        return settled(now, {"levels": bytes([50] * 1000).hex()}, BOUNDS) != now

    assert settles(1, -1)
    assert not settles(1, -1, 1)
    assert not settles(2)
    assert settled({"levels": "3232"}, {"levels": "323232"}, BOUNDS) == {"levels": "3232"}


def test_browsers_and_python_have_one_table_of_what_graphs_may_hold() -> None:
    committed = vectors.TABLE_IN_BROWSER.read_text("utf-8")
    assert committed == vectors.table_in_browser(), "run python -m tests.web.vectors, and look"
