"""The common look of all figures (colours, fonts, PNG and themed SVG), and the data that they draw.

Each kind of update has one colour in every picture, of those of Okabe and Ito (2008), which people with any
colour vision can tell apart. Policies differ in their dashes too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from device_runtime.simulation.compare.equal import EqualTerms, equal
from device_runtime.simulation.compare.figures import (
    ComparisonTerms,
    FinishedRun,
    Summary,
    read_all,
    summarise,
    terms,
)
from device_runtime.simulation.compare.plan import ComparisonPlan

INK, MUTED, FAINT, PAPER, STRONG = "#1b2430", "#5b6673", "#d3d9e0", "#fdfdfe", "#22313f"
THEMED = {INK: "ink", MUTED: "muted", FAINT: "faint", PAPER: "paper", STRONG: "strong"}
"""The colours that change in a dark theme, with their names in the style sheet."""

KINDS = {
    "full": "#0072b2",
    "entropy-subset": "#56b4e9",
    "few-shot": "#009e73",
    "zeroth-order": "#e69f00",
    "class-means": "#cc79a7",
}
FATES = {
    "late": "#9aa4af",
    "unopened": "#c2a878",
    "crashed": "#3f4954",
    "dropped out": "#6b7682",
    "refused": "#d55e00",
    "sat out": FAINT,
    "rested": "#c5d8c8",
    "unheard": FAINT,
}
"""Colours of asks whose update did not count; a worse fate is darker."""
SPARE = (
    "#7f6bb0", "#8c6d1f", "#4f9d69", "#d1495b", "#3d7ea6", "#a05195", "#c98a4b", "#5f7c3a", "#8a5a44",
    "#2f9e9e", "#b0508f", "#6c5ce7", "#9b870c",
)  # fmt: skip
"""Colours for kinds and policies that have no fixed colour."""
MARKERS = ("^", "v", "<", ">", "p", "h", "*", "P")


@dataclass(frozen=True)
class Stroke:
    """The line style of a policy; `dashes` as matplotlib takes them."""

    colour: str
    dashes: tuple[int, tuple[float, ...]]
    marker: str


_CHOOSE = Stroke(STRONG, (0, ()), "o")
_DROP = Stroke("#c44536", (0, (5, 2)), "s")
_REDUCED = Stroke("#b8860b", (0, (6, 2, 1.5, 2)), "D")
_POLICIES = {
    "choose": _CHOOSE,
    "mixed": _CHOOSE,
    "drop": _DROP,
    "fedavg": _DROP,
    "reduced": _REDUCED,
    "fedavg+": _REDUCED,
    "no-stragglers": Stroke("#5b6673", (0, (1, 1)), "x"),
    "centralised": Stroke("#9aa4af", (0, (1, 1)), "+"),
}


def kind_colour(kind: str) -> str:
    """The colour of a kind, or of a fate, in every picture."""
    return KINDS.get(kind) or FATES.get(kind) or SPARE[crc32(kind.encode()) % len(SPARE)]


def stroke(policy: str) -> Stroke:
    """The line style of a policy.

    A policy named after a kind has the kind's colour. Other policies may share a colour, with other markers.
    """
    marker = MARKERS[crc32(policy.encode()) // len(SPARE) % len(MARKERS)]
    return _POLICIES.get(policy) or Stroke(kind_colour(policy), (0, (1.5, 1.5)), marker)


def outcomes(names: set[str]) -> list[str]:
    """The outcomes in stacking order: kinds, the richest first, then fates, the mildest first."""
    kinds = [kind for kind in KINDS if kind in names]
    others = sorted(names - KINDS.keys() - FATES.keys())
    fates = [
        fate
        for fate in ("unopened", "late", "unheard", "sat out", "rested", "dropped out", "crashed", "refused")
        if fate in names
    ]
    return [*kinds, *others, *fates]


WIDTH = 9.0
"""Width of a figure in inches, which fits a page of text at its natural size."""
DPI = 144

LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "path",
}


@contextmanager
def look() -> Iterator[None]:
    """Gives every figure made within it this look. Figures go to files, so no display is needed."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        yield


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure of the page's width and `height` inches, and its axes, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def png(picture: Drawing, out: Path | BinaryIO) -> None:
    """Writes a PNG in light colours, with the title."""
    picture.figure.suptitle(picture.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    picture.figure.savefig(out, format="png", dpi=DPI)
    picture.figure.suptitle("")


def svg(picture: Drawing) -> str:
    """One <svg> element without the title; themed colours are variables of the style sheet."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": picture.name}):
        picture.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    for colour, name in THEMED.items():
        text = text.replace(colour, f"var(--{name})")
    return _named_apart(text, picture.name)


def _named_apart(text: str, name: str) -> str:
    """Prefixes all ids with the drawing's name, because ids must be unique on a page."""
    text = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", text)  # equal images share an id, which is unused
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return text.replace("url(#", f"url(#{name}-")


@dataclass(frozen=True)
class ComparedRuns:
    """A comparison whose runs are all finished, read from its files; `summary` by policy."""

    plan: ComparisonPlan
    runs: tuple[FinishedRun, ...]
    terms: ComparisonTerms
    summary: Mapping[str, Summary]
    equal: EqualTerms

    @property
    def policies(self) -> tuple[str, ...]:
        return self.plan.comparison.policies

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.runs[0].info.labels

    def of(self, policy: str) -> list[FinishedRun]:
        """The runs of a policy, by seed."""
        return [run for run in self.runs if run.name.policy == policy]


@dataclass(frozen=True)
class Drawing:
    """A drawing: the stem of its files, its title, its caption, and matplotlib's figure without the title."""

    name: str
    title: str
    caption: str
    figure: Any

    def save(self, path: str | Path) -> None:
        """Writes a PNG with the title. Raises OSError."""
        with look():
            png(self, Path(path))

    def _repr_png_(self) -> bytes:
        """The picture, as a notebook shows it."""
        out = io.BytesIO()
        with look():
            png(self, out)
        return out.getvalue()


def read_comparison(plan: ComparisonPlan) -> ComparedRuns:
    """Reads a comparison. Raises SimulationError when a run is not finished, or its files are damaged."""
    runs = tuple(read_all(plan))
    at = terms(runs, plan.scenario.devices, plan.comparison.target)
    return ComparedRuns(plan, runs, at, summarise(runs, at), equal(runs, at, plan.scenario))
