"""Writes the tables of docs/fleets.md from the shipped profiles and fleets: python docs/fleets.py

`refreshed` writes them into a page, between `<!-- NAME -->` and `<!-- /NAME -->`. A test checks that the page
has the tables as they are generated now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from device_runtime.profiles.device import Board, boards
from device_runtime.profiles.fleets.fleet import load, preset_names

_SAMPLE, _SEED = 10_000, 0
"""Number of devices that are drawn of each preset for its table, and their seed."""


def boards_table() -> str:
    """Every shipped profile with its figures and their sources."""
    heads = ("name", "device", "cores", "memory, left, MiB", "idle, load, W", "up, down, MB/s", "sources")
    return _table(heads, (_board_row(name, board) for name, board in boards().items()))


def _board_row(name: str, board: Board) -> tuple[str, ...]:
    sources = {
        "speed": board.speed_source,
        "memory": board.memory_source,
        "power": board.power_source,
        "link": board.link_source,
    }
    return (
        f"`{name}`",
        board.title,
        str(board.cores),
        f"{board.memory_mb:,}, {board.available_mb:,}",
        f"{board.idle_w:g}, {board.load_w:g}",
        f"{board.up_bytes_per_s / 1e6:g}, {board.down_bytes_per_s / 1e6:g}",
        "; ".join(f"**{what}** {source}" for what, source in sources.items()),
    )


def rates_table() -> str:
    """The rate with either network in GFLOP/s, and their ratio."""
    heads = ("name", "MobileNetV2, ms", "ResNet-18, ms", "rate used, GFLOP/s", "by ResNet-18", "times")
    rows = (
        (
            f"`{name}`",
            f"{board.mobilenet_v2_ms:g}",
            f"{board.resnet18_ms:g}",
            f"{board.flops_per_s / 1e9:.1f}",
            f"{board.wide_flops_per_s / 1e9:.1f}",
            f"{board.wide_flops_per_s / board.flops_per_s:.1f}",
        )
        for name, board in boards().items()
    )
    return _table(heads, rows)


def presets_table() -> str:
    """Devices drawn of each preset: 5%, median and 95% of their rates; fewest and most available in a day."""
    heads = ("preset", "groups", "GFLOP/s", "Mbit/s up", "there, % of devices", "fail, % of asks")
    return _table(heads, (_preset_row(name) for name in preset_names()))


def _preset_row(name: str) -> tuple[str, ...]:
    spec = load(name)
    fleet = spec.draw(_SAMPLE, _SEED)
    profiles = [fleet.profile(i) for i in range(len(fleet))]
    there = [100 * fleet.present(900.0 * quarter).mean() for quarter in range(96)]
    fail = sum(g.share * (1 - (1 - g.failures.crash) * (1 - g.failures.drop)) for g in spec.groups.values())
    return (
        f"`{name}`",
        ", ".join(f"{group} {100 * one.share:g}%" for group, one in spec.groups.items()),
        _quantiles([profile.speed.flops_per_s / 1e9 for profile in profiles]),
        _quantiles([profile.bandwidth.up * 8 / 1e6 for profile in profiles]),
        f"{min(there):.0f} to {max(there):.0f}",
        f"{100 * fail:.1f}",
    )


def _quantiles(values: Sequence[float]) -> str:
    return ", ".join(f"{float(f'{value:.2g}'):g}" for value in np.quantile(values, [0.05, 0.5, 0.95]))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "boards": boards_table,
    "rates": rates_table,
    "presets": presets_table,
}


def refreshed(page: str) -> str:
    """The page with every table in it generated anew."""
    for name, table in TABLES.items():
        head, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, tail = rest.partition(f"<!-- /{name} -->")
        if opening and closing:
            page = f"{head}{opening}{table()}\n{closing}{tail}"
    return page


if __name__ == "__main__":
    page = Path(__file__).with_name("fleets.md")
    page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
