"""Sections of the page of results."""

import pytest

from benchmarks.papers.rendering import put, write
from device_runtime.simulation.errors import SimulationError


def test_a_new_page_begins_with_what_it_is():
    page = put("", "paper:1 cpu", "## One\n")
    assert page.startswith("# Results\n")
    assert page.endswith("\n\n<!-- paper:1 cpu -->\n## One\n<!-- /paper:1 cpu -->\n")


def test_a_section_is_replaced_and_the_others_stay():
    page = put(put("", "paper:1 cpu", "## One\n"), "paper:2 cpu", "## Two\n") + "By hand.\n"
    again = put(page, "paper:1 cpu", "## Uno \\1\n")
    assert again == page.replace("## One", "## Uno \\1")


def test_another_scale_is_another_section():
    page = put(put("", "paper:1 cpu", "## One\n"), "paper:1 full", "## All\n")
    assert page.index("## One") < page.index("## All")


def test_the_same_section_gives_the_same_page(tmp_path):
    write(tmp_path / "results.md", "paper:1 cpu", "## One\n")
    first = (tmp_path / "results.md").read_bytes()
    write(tmp_path / "results.md", "paper:1 cpu", "## One\n")
    assert (tmp_path / "results.md").read_bytes() == first


def test_a_page_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(SimulationError, match="cannot write"):
        write(tmp_path, "paper:1 cpu", "## One\n")
