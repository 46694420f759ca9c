from pathlib import Path

import pytest

from . import vectors


@pytest.mark.parametrize("writer", vectors.WRITERS, ids=lambda path: path.stem)
def test_committed_vectors_are_what_python_writes(writer: Path) -> None:
    committed = vectors.target(writer)
    assert committed.exists(), f"{committed} is missing: python -m tests.web.vectors"
    assert committed.read_text("utf-8") == vectors.made(writer), "run python -m tests.web.vectors, and look"


def test_every_file_of_vectors_has_its_writer() -> None:
    written = {vectors.target(writer).name for writer in vectors.WRITERS}
    assert {path.name for path in vectors.FOLDER.iterdir()} == written
