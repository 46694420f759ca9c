"""The colours of everything that is drawn, so that one thing has one colour in every picture.

Kinds of update have those of Okabe and Ito (2008), which people with any colour vision tell apart; policies
differ in their dashes too. The first five constants stand for what a page shows otherwise in the dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

INK, MUTED, FAINT, PAPER, STRONG = "#1b2430", "#5b6673", "#d3d9e0", "#fdfdfe", "#22313f"
THEMED = {INK: "ink", MUTED: "muted", FAINT: "faint", PAPER: "paper", STRONG: "strong"}
"""The style sheet's names of those that change with the theme."""

KINDS = {
    "full": "#0072b2",
    "entropy-subset": "#56b4e9",
    "few-shot": "#009e73",
    "zeroth-order": "#e69f00",
    "class-means": "#cc79a7",
}
FATES = {
    "late": "#9aa4af",
    "crashed": "#3f4954",
    "dropped out": "#6b7682",
    "refused": "#d55e00",
    "sat out": FAINT,
    "unheard": FAINT,
}
"""What became of those whose update did not count, darker the worse."""
SPARE = (
    "#7f6bb0", "#8c6d1f", "#4f9d69", "#d1495b", "#3d7ea6", "#a05195", "#c98a4b", "#5f7c3a", "#8a5a44",
    "#2f9e9e", "#b0508f", "#6c5ce7", "#9b870c",
)  # fmt: skip
"""For kinds and policies that have none of their own."""
MARKERS = ("^", "v", "<", ">", "p", "h", "*", "P")


@dataclass(frozen=True)
class Stroke:
    """How a policy is drawn. `dashes` as matplotlib takes them."""

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
    """The same in every picture; of an outcome that is no kind, that of the fate."""
    return KINDS.get(kind) or FATES.get(kind) or SPARE[crc32(kind.encode()) % len(SPARE)]


def stroke(policy: str) -> Stroke:
    """A policy of one kind alone has the kind's colour; of many some share one, and have other markers."""
    marker = MARKERS[crc32(policy.encode()) // len(SPARE) % len(MARKERS)]
    return _POLICIES.get(policy) or Stroke(kind_colour(policy), (0, (1.5, 1.5)), marker)


def outcomes(found: set[str]) -> list[str]:
    """In the order in which they are stacked: kinds, the richest first, then fates, the mildest first."""
    kinds = [kind for kind in KINDS if kind in found]
    others = sorted(found - KINDS.keys() - FATES.keys())
    fates = [
        fate for fate in ("late", "unheard", "sat out", "dropped out", "crashed", "refused") if fate in found
    ]
    return [*kinds, *others, *fates]
