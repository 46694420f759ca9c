"""Everything a comparison ends with: the table, the plots, the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from device_runtime.simulation.compare.plan import Plan

from . import accuracy, canvas, equal_table, local_models, participation, table, time_line
from .compared import Compared, Picture, compared
from .page import page

PICTURES: tuple[Callable[[Compared], Picture | None], ...] = (
    accuracy.over_time,
    accuracy.over_costs,
    accuracy.of_groups,
    participation.who_took_part,
    time_line.one_round,
    participation.busy_times,
    accuracy.by_class,
    local_models.drift,
    local_models.similarity,
    local_models.said,
)
"""In the order of the page."""


@dataclass(frozen=True)
class Report:
    """What was written, and what there is to say of it."""

    compared: Compared
    page: Path
    plots: tuple[Path, ...]

    def text(self, wide: int | None = None) -> str:
        """The table, in parts one below the other where it is wider than this, and where the rest lies."""
        mine = self.compared
        return (
            f"\n{table.text(mine.summary, mine.terms, wide)}\n\n"
            f"{equal_table.text(mine.equal, mine.terms, wide)}\n\n"
            f"report {self.page}\nplots  {self.page.parent / 'plots'}/ ({len(self.plots)} PNG)"
        )

    def json(self) -> str:
        """The same figures in plain units; null where not known."""
        mine = self.compared
        whole = {
            "report": str(self.page),
            "plots": [str(path) for path in self.plots],
            "terms": asdict(mine.terms),
            "policies": {
                policy: {name: asdict(each) for name, each in figures.items()}
                for policy, figures in mine.summary.items()
            },
            "equal": mine.equal,
        }
        return msgspec.json.format(msgspec.json.encode(whole)).decode()


def write(plan: Plan) -> Report:
    """Into the plan's folder: report.html, summary.csv, summary.json, plots/*.png.

    Raises SimulationError when a run is not finished.
    """
    mine = compared(plan)
    plots = plan.folder / "plots"
    plots.mkdir(exist_ok=True)
    for old in plots.glob("*.png"):
        old.unlink()
    with canvas.look():
        pictures = [picture for draw in PICTURES if (picture := draw(mine)) is not None]
        text = page(mine, pictures)
        for picture in pictures:
            canvas.png(picture, plots / f"{picture.name}.png")
    paths = tuple(plots / f"{picture.name}.png" for picture in pictures)
    report = Report(mine, plan.folder / "report.html", paths)
    report.page.write_text(text, "utf-8")
    (plan.folder / "summary.csv").write_text(
        table.as_csv(mine.summary) + equal_table.as_csv(mine.equal), "utf-8"
    )
    (plan.folder / "summary.json").write_text(report.json() + "\n", "utf-8")
    return report
