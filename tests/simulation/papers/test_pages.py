"""Pages of results, and the index of all tables."""

import re
from pathlib import Path

import pytest

from benchmarks.papers import catalogue, pages, stamps
from benchmarks.papers.pages import Section, check, index, put, sections, write, written
from device_runtime.simulation.errors import SimulationError

TEXTS = Path(__file__).parents[4] / "shared" / "papers"
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")
MISPRINTS = {"000": {"3.10"}, "001": {"4.3"}, "002": {"4.10"}}
"""Numbers that the papers refer to and no table has: they mean figures 3.10 and 4.10, and table 3."""
MADE = "## A title: of 2 (x)\n\n3 seeds; 2026-11-26; code of {code}; torch 2.\n\n"


def section(name="paper:002-t4.3", scale="cpu", text="## One\n"):
    return Section(name, scale, text)


def test_a_page_begins_with_the_paper_and_has_a_section_between_markers():
    page = put(pages.head("paper:002-t4.3"), section())
    assert page.startswith("# Tables of Shi 2025")
    assert page.endswith("\n\n<!-- paper:002-t4.3 cpu -->\n## One\n<!-- /paper:002-t4.3 cpu -->\n")
    assert pages.head("ours:heads").startswith("# Our own tables\n")
    assert [pages.page(name) for name in ("paper:002-t4.3", "ours:heads")] == ["002.md", "ours.md"]


def test_a_section_is_replaced_and_the_others_stay():
    page = put(put("# Page\n", section()), section("paper:002-t4.5")) + "By hand.\n"
    again = put(page, section(text="## Uno \\1\n"))
    assert again == page.replace("## One", "## Uno \\1", 1)


def test_sections_are_in_the_order_of_tables_and_another_scale_is_another_section():
    page = "# Page\n"
    for name, scale in (("paper:002-t5.11", "cpu"), ("paper:002-t5.7", "full"), ("paper:002-t5.7", "cpu")):
        page = put(page, section(name, scale))
    marks = [(each.name[-4:], each.scale) for each in sections(page)]
    assert marks == [("t5.7", "cpu"), ("t5.7", "full"), ("5.11", "cpu")]


@pytest.fixture
def outcome(table, tmp_path):
    """Of a table without any run, which has no picture."""
    from benchmarks.papers.outcome import read
    from benchmarks.papers.places import DataFolder, shared
    from benchmarks.papers.resolving import Resources
    from benchmarks.papers.runs import WantedTable, cells

    wanted_table = WantedTable(table, "cpu", 1, tmp_path, only_kept=True)
    return read(wanted_table, cells(wanted_table, Resources(DataFolder(None), shared())))


def test_the_same_outcome_gives_the_same_pages(outcome, tmp_path):
    folder = tmp_path / "results"
    write(folder, outcome, "run it")
    first = {file.name: file.read_bytes() for file in folder.glob("*.md")}
    assert first.keys() == {"README.md", "002.md"}
    write(folder, outcome, "run it")
    assert {file.name: file.read_bytes() for file in folder.glob("*.md")} == first


def test_a_folder_that_cannot_be_written_is_named(outcome, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SimulationError, match=r"cannot write .*file/002\.md: not a directory"):
        write(tmp_path / "file", outcome, "run it")


def test_a_section_says_whether_its_code_has_changed_since(monkeypatch):
    counts = {"abc1234": 0, "def5678": 2, "0000000": None}
    calls = []

    def since(commit, paths):
        calls.append(paths)
        return counts[commit]

    monkeypatch.setattr(stamps, "commits_since", since)
    states = {
        code: section(text=MADE.format(code=code)).state
        for code in ("abc1234", "abc1234+, def5678", "0000000", "abc1234 and of unknown commits")
    }
    assert list(states.values()) == [
        "by code of abc1234",
        "by code of abc1234+, def5678, changed since in 2 commits",
        "by code of 0000000, which is not in this repository",
        "by code of abc1234 and of unknown commits",
    ]
    assert section().state == "by code of an unknown commit"
    assert "benchmarks/papers/tables/002-t4.3.toml" in calls[0]
    assert "device_runtime/strategies" in calls[0]


def test_sections_whose_code_has_changed_are_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(stamps, "commits_since", lambda commit, paths: 1 if commit == "def5678" else 0)
    page = put("", section(text=MADE.format(code="abc1234")))
    page = put(page, section("paper:002-t4.5", text=MADE.format(code="def5678")))
    (tmp_path / "002.md").write_text(page)
    assert check(tmp_path) == "paper:002-t4.5 cpu: by code of def5678, changed since in 1 commit"


def test_the_index_links_sections_with_their_verdicts_or_says_why_a_table_is_not_run(monkeypatch):
    monkeypatch.setattr(stamps, "commits_since", lambda commit, paths: 1 if commit == "abc1234" else 0)
    claims = "| claim | verdict |\n|---|---|\n| a | holds |\n| b | not shown: 1 of 3 seeds |\n| c | holds |\n"
    claims += "\n* claims that need these: 3\n"
    old = section(text=MADE.format(code="abc1234") + claims)
    new = section("paper:002-t4.5", text=MADE.format(code="def5678"))
    unknown = section("ours:clip-norm")
    lines = index([old, new, unknown]).splitlines()
    results = [line.rpartition(" | ")[2] for line in lines if line.startswith("|")]
    link = "[scale cpu](002.md#a-title-of-2-x): claims: 2 holds, 1 too few seeds, 3 not run"
    assert f"{link}; code changed since |" in results
    assert "[scale cpu](002.md#a-title-of-2-x) |" in results
    assert f"[scale cpu](ours.md#{unknown.anchor}): by code of an unknown commit |" in results
    assert f"| 4.3 | {catalogue.load('paper:002-t4.3').title} | {link}; code changed since |" in lines
    assert "| paper | holds | fails | not shown | at chance | too few seeds | not run |" in lines
    assert "| 002 | 2 | 0 | 0 | 0 | 1 | 3 |" in lines
    assert "| 5.10 |  | not run: sizes of feature maps, not runs |" in lines
    assert lines.index("| 2 |  | not run: the same as 000, table 3.2 |") > 0
    [heads] = [line for line in lines if line.startswith("| `ours:heads` |")]
    assert heads.endswith("| can be run; no results yet |")


@pytest.mark.parametrize("number", catalogue.PAPERS)
def test_every_table_that_a_paper_mentions_is_in_the_index(number):
    if not TEXTS.is_dir():
        pytest.skip("papers are read from ../shared/papers, which is not there")
    [file] = TEXTS.glob(f"{number}_*.txt")
    pattern = r"\b(?:Table|TABLE|Tab\.)\s+(A\.\d|\d+(?:\.\d+)?|[IVX]+)(?![\w])"
    mentions = set(re.findall(pattern, file.read_text("utf-8")))
    mentions = {str(ROMAN.index(each) + 1) if each in ROMAN else each for each in mentions}
    names = {name.partition("-t")[2] for name in (*catalogue.names(), *catalogue.left_out())
             if name.startswith(f"paper:{number}-")}  # fmt: skip
    assert mentions
    assert mentions - MISPRINTS.get(number, set()) <= names
    assert not MISPRINTS.get(number, set()) & names


def test_the_index_of_the_project_lists_every_section_and_every_table():
    folder = Path(__file__).parents[3] / "laboratory" / "results"
    text = (folder / "README.md").read_text("utf-8")
    for each in written(folder):
        assert f"[scale {each.scale}]({pages.page(each.name)}#{each.anchor})" in text
    for name in catalogue.left_out():
        assert f"| {name.partition('-t')[2]} |  | not run: {catalogue.left_out()[name]} |" in text
    for name in catalogue.names():
        assert catalogue.load(name).title in text
