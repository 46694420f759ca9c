"""The programs of benchmarks/desk and the pages that show them: docs/from-flower.md and others."""

import os
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DESK = runpy.run_path(str(ROOT / "benchmarks" / "desk" / "run.py"))
PROGRAMS = sorted(DESK["HERE"].glob("*/*.py"))
ENVIRONMENTS = ROOT / ".bench-environments"


def named(path):
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("page", DESK["PAGES"], ids=lambda page: page.stem)
def test_a_page_shows_the_programs_as_they_are(page):
    text = page.read_text("utf-8")
    assert DESK["refreshed"](text) == text, "run benchmarks/desk/run.py --pages"
    blocks = re.findall(r"^```python$", text, re.M)
    assert len(blocks) == len(re.findall(r"^<!-- \w+/\w+\.py -->$", text, re.M)) > 4


def test_every_program_is_of_a_job_and_shown_by_a_page():
    pages = "".join(page.read_text("utf-8") for page in DESK["PAGES"])
    assert {path.stem for path in PROGRAMS} == set(DESK["JOBS"])
    assert {path.parent.name for path in PROGRAMS} == set(DESK["SYSTEMS"])
    assert [named(path) for path in PROGRAMS if f"<!-- {named(path)} -->" not in pages] == []


def test_lines_that_are_blank_or_comments_do_not_count():
    assert DESK["lines_of_code"]("# a\n\nx = 1  # b\n\n\ndef f():\n    # c\n    return x\n") == 3


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=named)
def test_each_program_runs(path):
    """A peer's environment is made by `benchmarks/desk/run.py`, which takes minutes and a package index."""
    system = path.parent.name
    if system == "ours":
        pytest.importorskip("torch")
        pytest.importorskip("pandas")
    elif not (ENVIRONMENTS / system / "made").exists() and not os.environ.get("MAKE_ENVIRONMENTS"):
        pytest.skip(f"{system} is not installed here: python benchmarks/desk/run.py --systems {system}")
    outcome = DESK["ran"](system, path.stem, ENVIRONMENTS)
    assert re.fullmatch(r"\d+ s", outcome), outcome
