"""The forecast of a fleet for people: who is a straggler, a table of costs by group and kind, a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.device.selection.choose import MARGIN
from device_runtime.simulation.compare.figures import DASH, digits
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.rounds.forecast import FleetForecast, KindForecast

from .canvas import INK, MUTED, PAPER, Drawing, kind_colour, look, panels

HEADERS = ("group", "kind", "seconds", "MB", "joules", "fits", "sends")
SHARES = (0.0, 0.1, 0.3, 0.5)
"""The shares of stragglers whose deadlines are told."""
SITS_OUT = "(sits out)"
_FEW = 8
"""Groups that a sentence names one by one."""
Value = Callable[[KindForecast], NDArray[np.float64]]


def text(forecast: FleetForecast) -> str:
    """The forecast as text: who is a straggler, a table, what it says, and deadlines of other shares."""
    rows = [row for group in forecast.group_names for row in _rows(forecast, group)]
    return "\n".join([
        stragglers(forecast),
        "",
        tabulate(rows, HEADERS, disable_numparse=True, colalign=("left", "left", *["right"] * 5)),
        "",
        "Medians of a group's devices, with the 5% and 95% quantile, for the richest form of each kind:",
        "seconds from the offer to the arrival of the update, modelled joules of a round. fits: devices that",
        "have the memory and time for some form of the kind; sends: devices that would send it.",
        *_why_none(forecast),
        *other_deadlines(forecast),
    ])  # fmt: skip


def stragglers(forecast: FleetForecast) -> str:
    """Who is a straggler, and who is not, in one sentence or two."""
    count, late = len(forecast.straggler), int(forecast.straggler.sum())
    of = f"{count:,} devices" if count == forecast.devices else f"{count:,} of {forecast.devices:,} devices"
    where = f"{of} of fleet {forecast.name}, bundle {forecast.bundle}, deadline {forecast.deadline_s:.4g} s"
    if not late:
        need = float(forecast.needs_s.max())
        slowest = f"the slowest needs a deadline of {need:.3g} s"
        return f"{where}: nobody is a straggler, a full update fits every device; {slowest}."
    shares = {name: forecast.straggler[forecast.of_group(name)] for name in reversed(forecast.group_names)}
    late_of = [f"{name} {int(of.sum()):,} of {len(of):,}" for name, of in shares.items() if of.any()]
    more = [f"and {len(late_of) - _FEW} more groups"] if len(late_of) > _FEW else []
    memory = int(np.isinf(forecast.needs_s).sum())
    lacking = f", {memory:,} of them for lack of memory" if memory else ""
    sentence = f"{where}: {late:,} ({late / count:.0%}) are stragglers{lacking}"
    return f"{sentence}: {', '.join([*late_of[:_FEW], *more])}."


def _why_none(forecast: FleetForecast) -> Iterator[str]:
    """A line for each kind that fits no device."""
    for kind in forecast.kinds:
        if kind.misfit:
            yield f"{kind.kind} fits no device; most often it {kind.misfit}."


def other_deadlines(forecast: FleetForecast) -> Iterator[str]:
    """A line with the deadlines that make other shares of the devices stragglers; none if all lack memory."""
    phrases = []
    for share in SHARES:
        try:
            deadline_s = forecast.deadline_for(share)
        except ScenarioError:
            continue
        late = float((forecast.needs_s > deadline_s).mean())
        phrases.append(f"{deadline_s:.4g} s ({late:.0%})")
    if phrases := list(dict.fromkeys(phrases)):
        yield f"Deadlines and the stragglers they leave: {', '.join(phrases)}."


def by_group(forecast: FleetForecast) -> dict[str, object]:
    """The forecast by group and kind: medians in seconds, bytes, joules; None where no device can do it."""
    groups = {}
    for name in forecast.group_names:
        among = forecast.of_group(name)
        groups[name] = {
            "devices": int(among.sum()),
            "stragglers": int(forecast.straggler[among].sum()),
            "kinds": {
                kind.kind: {
                    "seconds": _median(kind.seconds[among]),
                    "memory_bytes": _median(kind.memory_bytes[among]),
                    "energy_j": _median(kind.energy_j[among]),
                    "fits": int(kind.fits[among].sum()),
                    "sends": int(kind.sends[among].sum()),
                }
                for kind in forecast.kinds
            },
        }
    whole = {"fleet": forecast.name, "bundle": forecast.bundle, "deadline_s": forecast.deadline_s}
    return {**whole, "devices": len(forecast.groups), "of_devices": forecast.devices, "groups": groups}


def picture(forecast: FleetForecast) -> Drawing:
    """Draws seconds with the deadline, memory with its limit, and joules of each kind, by group."""
    with look():
        return _picture(forecast)


def _picture(forecast: FleetForecast) -> Drawing:
    groups, kinds = forecast.group_names, forecast.kinds
    height = 1.5 + len(groups) * (0.25 + 0.17 * len(kinds))
    figure, axes = panels(1, 3, height, sharey=True, width_ratios=(2, 1, 1))
    seconds, memory, joules = axes[0]
    _values(seconds, forecast, lambda kind: kind.seconds)
    _values(memory, forecast, lambda kind: kind.memory_bytes / 1e6)
    _values(joules, forecast, lambda kind: kind.energy_j)
    _deadline(seconds, forecast.deadline_s)
    for row, group in enumerate(groups):
        limit = float(np.median(forecast.memory_limit_bytes[forecast.of_group(group)])) / 1e6
        memory.plot([limit, limit], [row - 0.42, row + 0.42], color=INK, linewidth=1.4)
    seconds.set_yticks(range(len(groups)), [_group_label(forecast, group) for group in groups])
    seconds.set_ylim(len(groups) - 0.5, -0.5)
    for on, title, unit in zip(
        axes[0], ("time", "memory", "energy (modelled)"), ("s (log)", "MB (log)", "J (log)"), strict=True
    ):
        on.set_title(title)
        on.set_xlabel(unit)
        on.grid(axis="y", visible=False)
        for row in range(1, len(groups)):
            on.axhline(row - 0.5, color=MUTED, linewidth=0.4)
    handles = seconds.get_legend_handles_labels()[0]
    handles += memory.plot([], [], color=INK, linewidth=1.4, label="limit of memory")
    handles += seconds.plot(
        [], [], "o", markersize=5, color=MUTED, markerfacecolor=PAPER, label="fits no device"
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=5, handlelength=1.2)
    caption = (
        "Of each kind's richest form: the median of the group's devices, and the line from the 5% to the 95% "
        "quantile. Filled where some form of the kind fits a device of the group, hollow where it fits none."
    )
    late = f"{forecast.straggler.mean():.0%} stragglers"
    title = f"What a round costs fleet {forecast.name}: deadline {forecast.deadline_s:.4g} s, {late}"
    return Drawing("fleet", title, caption, figure)


def _rows(forecast: FleetForecast, group: str) -> Iterator[tuple[str, ...]]:
    among = forecast.of_group(group)
    devices, late = int(among.sum()), int(forecast.straggler[among].sum())
    # the first rows of a group say how many devices it has, and how many of them are stragglers
    words = iter((group, f"  {devices:,} devices" if devices > 1 else "  1 device", f"  {late:,} stragglers"))
    idle = among.copy()
    for kind in forecast.kinds:
        idle &= ~kind.sends
        yield (
            next(words, ""),
            kind.kind,
            _spread(kind.seconds[among]),
            _spread(kind.memory_bytes[among] / 1e6, 2),
            _spread(kind.energy_j[among]),
            f"{int(kind.fits[among].sum()):,}",
            _count(int(kind.sends[among].sum())),
        )
    rest = list(words)
    if idle.any():
        yield (rest.pop(0) if rest else "", SITS_OUT, "", "", "", "", f"{int(idle.sum()):,}")
    for word in rest:
        yield (word, *[""] * 6)


def _count(number: int) -> str:
    return f"{number:,}" if number else DASH


def _spread(values: NDArray[np.float64], significant: int = 3) -> str:
    """The median, and the 5% and 95% quantile where they differ from it."""
    values = values[~np.isnan(values)]
    if not values.size:
        return DASH
    low, middle, high = (
        digits(_short(float(each)), significant) for each in np.quantile(values, (0.05, 0.5, 0.95))
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def _short(value: float) -> float:
    """The value with three significant digits."""
    return float(f"{value:.3g}")


def _median(values: NDArray[np.float64]) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if values.size else None


def _values(on: Any, forecast: FleetForecast, value: Value) -> None:
    """Draws the figures of each kind, in a band for each group."""
    from matplotlib.ticker import NullFormatter

    step = 0.8 / max(1, len(forecast.kinds))
    for place, kind in enumerate(forecast.kinds):
        offset = (place - (len(forecast.kinds) - 1) / 2) * step
        colour = kind_colour(kind.kind)
        for row, group in enumerate(forecast.group_names):
            among = forecast.of_group(group)
            values = value(kind)[among]
            values = values[~np.isnan(values)]
            if not values.size:
                continue
            low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
            fill = colour if kind.fits[among].any() else PAPER
            on.hlines(row + offset, low, high, color=colour, linewidth=2)
            on.plot(middle, row + offset, "o", markersize=5, markeredgecolor=colour, markerfacecolor=fill)
        if not np.isnan(value(kind)).all():
            on.plot([], [], "o", markersize=5, color=colour, label=kind.kind)
    on.set_xscale("log")
    on.xaxis.set_major_formatter("{x:g}")
    on.xaxis.set_minor_formatter(NullFormatter())


def _deadline(on: Any, deadline_s: float) -> None:
    """Marks the deadline, and the times that no plan may fill."""
    low, high = on.get_xlim()
    low, high = min(low, deadline_s / 2), max(high, deadline_s * 2)
    on.axvspan(MARGIN * deadline_s, high, color="#c44536", alpha=0.08, linewidth=0, label="too late")
    on.axvline(deadline_s, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="deadline")
    on.set_xlim(low, high)


def _group_label(forecast: FleetForecast, group: str) -> str:
    among = forecast.of_group(group)
    late = float(forecast.straggler[among].mean())
    return f"{group} ({int(among.sum()):,})\n{'no' if not late else f'{late:.0%}'} stragglers"
