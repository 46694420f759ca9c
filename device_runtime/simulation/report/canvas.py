"""Figures of one look, as PNG and as SVG that follows the page's theme."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .compared import Picture
from .palette import FAINT, INK, MUTED, PAPER, THEMED

WIDTH = 9.0
"""Inches: what a page of text shows at its natural size."""
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
    """Within it every figure has this look. Figures are made, not shown: no display is needed."""
    import matplotlib

    with matplotlib.rc_context(LOOK):
        yield


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Any, Any]:
    """A figure of the page's width and `height` inches, and its axes, (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def png(picture: Picture, path: Path) -> None:
    """With its title, light."""
    picture.figure.suptitle(picture.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    picture.figure.savefig(path, format="png", dpi=DPI)
    picture.figure.suptitle("")


def svg(picture: Picture) -> str:
    """One <svg> element without a title; colours of the theme are variables of the style sheet."""
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
    """Ids of several drawings on one page must not be the same."""
    text = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", text)  # equal images share one, which nobody uses
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return text.replace("url(#", f"url(#{name}-")
