"""The pages of results: one for each paper and one for our tables, and an index of every table.

Each table and scale has one section between markers; the rest of a page is not changed. The index is
written anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from device_runtime.simulation.errors import SimulationError

from . import catalogue, pictures, rendering, stamps
from .catalogue import PAPERS
from .outcome import TableOutcome

INDEX = "README.md"
PICTURES = "pictures"
FOLDER = Path("laboratory/results")
TOO_FEW = "too few seeds"
VERDICTS = ("holds", "fails", "not shown", "at chance", TOO_FEW, "not run")
_SECTION = re.compile(r"<!-- (\S+ \S+) -->\n(.*?)<!-- /\1 -->\n", re.S)
_CODE = re.compile(r"; code of ([^;]+);")
_UNJUDGED = re.compile(rf"^\* {rendering.UNJUDGED}(\d+)$", re.M)
OURS = "Our own tables"


@dataclass(frozen=True)
class Section:
    """A section of a page; `name` is the table's."""

    name: str
    scale: str
    text: str

    @property
    def anchor(self) -> str:
        """The anchor of the heading, as GitHub makes it."""
        heading = next(line for line in self.text.splitlines() if line.startswith("## "))
        return re.sub(r"[^\w\- ]", "", heading[3:].lower()).strip().replace(" ", "-")

    @property
    def code(self) -> str:
        """The commits of the code of its runs, in words; "" for a section of an older version."""
        match = _CODE.search(self.text)
        return match[1] if match else ""

    @property
    def verdicts(self) -> tuple[str, ...]:
        """The verdict of every claim; () for a section of an older version, which had other rules."""
        if not self.code:
            return ()
        cells = (
            line.strip("| ").rsplit("|", 1)[-1].strip() for line in self.text.splitlines() if "|" in line
        )
        cells = (TOO_FEW if cell.startswith("not shown:") else cell for cell in cells)
        named = (next((each for each in VERDICTS if cell.startswith(each)), "") for cell in cells)
        unjudged = _UNJUDGED.search(self.text)
        return (*(name for name in named if name), *("not run",) * (int(unjudged[1]) if unjudged else 0))

    @cached_property
    def since(self) -> int | None:
        """The most commits that changed its code since one of its runs; None if that is unknown."""
        paths = (*stamps.DECIDES, f"benchmarks/papers/tables/{catalogue.stem(self.name)}.toml")
        named = re.findall(r"\b[0-9a-f]{7,40}\b", self.code)
        counts = [stamps.commits_since(commit, paths) for commit in named]
        numbers = [number for number in counts if number is not None]
        if "unknown" in self.code or not numbers or len(numbers) < len(counts):
            return None
        return max(numbers)

    @property
    def state(self) -> str:
        """Whether its code has changed since, in words."""
        code = f"by code of {self.code or 'an unknown commit'}"
        if self.since is None:
            return code if "unknown" in code else f"{code}, which is not in this repository"
        if not self.since:
            return code
        return f"{code}, changed since in {self.since} commit{'s' if self.since > 1 else ''}"


def page(name: str) -> str:
    """The file name of the page that has this table."""
    return f"{paper(name) or 'ours'}.md"


def paper(name: str) -> str:
    """The number of the table's paper; "" for a table of ours."""
    return name.removeprefix("paper:").partition("-")[0] if name.startswith("paper:") else ""


def sections(text: str) -> Iterator[Section]:
    """The sections of a page."""
    for mark, content in _SECTION.findall(text):
        name, scale = mark.split()
        yield Section(name, scale, content)


def put(text: str, new: Section) -> str:
    """The page with this section: in place of the one of its table and scale, or in the order of tables."""
    mark = f"{new.name} {new.scale}"
    whole = f"<!-- {mark} -->\n{new.text}<!-- /{mark} -->\n"
    marks = list(_SECTION.finditer(text))
    if same := [each for each in marks if each[1] == mark]:
        return text[: same[0].start()] + whole + text[same[0].end() :]
    later = [each for each in marks if _place(each[1]) > _place(mark)]
    if later:
        return text[: later[0].start()] + whole + "\n" + text[later[0].start() :]
    return f"{text.rstrip()}\n\n{whole}"


def _place(mark: str) -> tuple[object, ...]:
    name, scale = mark.split()
    return (*catalogue.natural(catalogue.stem(name)), scale)


def head(name: str) -> str:
    """The first lines of the page that has this table."""
    number = paper(name)
    title = f"Tables of {PAPERS[number]}" if number else OURS
    return f"# {title}\n\n[How to read this, and all tables]({INDEX})\n"


def write(folder: Path, outcome: TableOutcome, command: str) -> None:
    """Writes the table's section with its picture, and the index. Raises SimulationError."""
    table, scale = outcome.table, outcome.request.scale
    picture = f"{PICTURES}/{catalogue.stem(table.id)}-{scale}.svg"
    drawn = pictures.svg(outcome)
    text = rendering.markdown(outcome, command, picture if drawn else "")
    path = folder / page(table.id)
    try:
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        if drawn:
            (folder / picture).write_text(drawn, "utf-8")
        before = path.read_text("utf-8") if path.exists() else head(table.id)
        path.write_text(put(before, Section(table.id, scale, text)), "utf-8")
    except OSError as error:
        raise SimulationError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
    write_index(folder)


def written(folder: Path) -> tuple[Section, ...]:
    """The sections of every page. Raises SimulationError."""
    try:
        texts = [(file.name, file.read_text("utf-8")) for file in sorted(folder.glob("*.md"))]
    except OSError as error:
        raise SimulationError(f"cannot read {folder}: {(error.strerror or str(error)).lower()}") from None
    return tuple(section for name, text in texts if name != INDEX for section in sections(text))


def check(folder: Path) -> str:
    """A line for each section whose code has changed since its runs, or is unknown."""
    changed = [each for each in written(folder) if each.since != 0]
    lines = (f"{each.name} {each.scale}: {each.state}" for each in changed)
    return "\n".join(lines) or "no section's code has changed since"


def write_index(folder: Path) -> None:
    """Writes the index of all tables. Raises SimulationError."""
    text = index(written(folder))
    try:
        (folder / INDEX).write_text(text, "utf-8")
    except OSError as error:
        raise SimulationError(f"cannot write {folder}: {(error.strerror or str(error)).lower()}") from None


def index(on_disk: Sequence[Section]) -> str:
    """The index: every table of every paper, with its results, or the reason why it is not run."""
    parts = [HEAD, _counts(on_disk)]
    names = [*catalogue.names(), *catalogue.left_out()]
    for number in (*PAPERS, ""):
        title = f"{number}: {PAPERS[number]}" if number else OURS
        tables = sorted(
            (name for name in names if paper(name) == number), key=lambda name: _place(f"{name} .")
        )
        rows = [f"| {_number(name)} | {_about(name)} | {_results(name, on_disk)} |" for name in tables]
        parts.append("\n".join([f"## {title}\n", "| table | compares | results |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _counts(on_disk: Sequence[Section]) -> str:
    """The number of claims by paper and verdict, without those of sections of an older version."""
    rows = ["## Claims\n", f"| paper | {' | '.join(VERDICTS)} |", f"|---|{'---|' * len(VERDICTS)}"]
    for number in (*PAPERS, ""):
        verdicts = [each for section in on_disk if paper(section.name) == number for each in section.verdicts]
        counts = " | ".join(str(verdicts.count(verdict)) for verdict in VERDICTS)
        rows.append(f"| {number or 'ours'} | {counts} |")
    return "\n".join(rows)


def _number(name: str) -> str:
    return name.partition("-t")[2] if paper(name) else f"`{name}`"


def _about(name: str) -> str:
    return "" if name in catalogue.left_out() else catalogue.load(name).title


def _results(name: str, on_disk: Iterable[Section]) -> str:
    """Links to the sections of the table, with their verdicts; or why there is none."""
    if why := catalogue.left_out().get(name):
        return f"not run: {why}"
    links = [
        f"[scale {each.scale}]({page(name)}#{each.anchor}){_about_runs(each)}"
        for each in on_disk
        if each.name == name
    ]
    return "<br>".join(links) or "can be run; no results yet"


def _about_runs(section: Section) -> str:
    """The number of claims by verdict, and whether the code has changed since."""
    counts = ((verdict, section.verdicts.count(verdict)) for verdict in VERDICTS)
    claims = ", ".join(f"{number} {verdict}" for verdict, number in counts if number)
    age = section.state if section.since is None else "code changed since" if section.since else ""
    text = "; ".join(filter(None, (f"claims: {claims}" if claims else "", age)))
    return f": {text}" if text else ""


HEAD = """# Results

Every table of every paper, and our own: what was run, at which scale, and what is not run, and why.

Each section is written by the command that stands in it, which also writes this page. Finished runs are kept
in `benchmarks/papers/kept-runs` and are not run again. So parts of a table can be run on several machines
(`--columns`, `--rows`), and a section can be written anew without any data (`--only-kept`). Where git is not
at hand, `DEVICE_RUNTIME_COMMIT` names the commit.

Numbers of a paper are as printed there; ours are measured. Scale `cpu` is for two cores and hours, with
smaller networks and data than the paper's: each section lists the differences. Scale `full` is the paper's.
Seconds, energy, and what follows from them are modelled.

A claim is an ordering that the paper prints or says, with the seeds paired. It **holds** if the 95% interval
of the mean difference (Student's t, three seeds or more) lies beyond its bound and most seeds agree. It
**fails** if that is so the other way round. Else it is **not shown**. With fewer than three seeds there is no
interval: **too few seeds**. Where both rows are within three points of guessing, nothing is claimed: **at
chance**. A claim is **not run** where one of its rows has no runs.

A section names the commits of the code of its runs ("+": with changes that were not committed). "Code changed
since" is said of every change to what trains, merges or simulates, whether it changes results or not;
`python -m benchmarks.papers --check` tells how many there were. Sections by code of an unknown commit were
written by an older version: their runs are not kept, and "holds" there only says on which side of the bound
the mean is."""
