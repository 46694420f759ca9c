"""Cuts recordings of sensors into windows; the rows of a recording are its time steps.

Windows lie within a stretch of consecutive rows with the same label. A row that cannot be read ends a
stretch, so that no window spans a gap. Where targets are numbers, each row has its own: a window's are those
of its last row, or of a row ahead (forecasts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec, WindowInput

from .cells import first_of, folded
from .units import RawSamples, Refused, Skip

AXES = ("y",)
"""Names of channels that would be names of a column of labels in other tables."""


class TimeStep(NamedTuple):
    """One time step: its label, and the values of all channels, float32 (channels,).

    target: its numbers, joined by commas, where targets have columns; None: labels are of classes.
    """

    label: str
    values: NDArray[Any]
    target: str | None = None


@dataclass(frozen=True)
class WindowCutter:
    """Finds the channels of a recording, and cuts its steps into windows (channels, length)."""

    channels: int
    length: int
    window: WindowInput

    @classmethod
    def of(cls, spec: InputSpec) -> WindowCutter | None:
        """The cutter for this input; None if its samples are not windows of recordings."""
        if not isinstance(spec.window, WindowInput):
            return None
        channels, length = spec.shape
        return cls(channels, length, spec.window)

    @property
    def one_step(self) -> InputSpec:
        """The input of a single time step, (channels,)."""
        return InputSpec((self.channels,))

    def other_names(self, names: Sequence[str]) -> list[str]:
        """The names of columns, empty for those of channels, among which the labels are looked for."""
        channels = {*map(folded, self.window.columns or AXES)}
        return ["" if folded(name) in channels else name for name in names]

    def columns(self, names: Sequence[str] | None, width: int, labels: Sequence[int] = ()) -> tuple[int, ...]:
        """The numbers of the columns that are the channels, in their order.

        names: of the columns, None without a header. width: number of columns. labels: the columns of labels
        or targets; a forecast may have its targets among its channels. Raises Refused if a named column is
        missing, or if there are more or fewer columns than channels.
        """
        channel_columns = self.window.columns
        if channel_columns and names is not None:
            called = {folded(name): number for number, name in enumerate(names)}
            if missing := [name for name in channel_columns if folded(name) not in called]:
                raise Refused(f"no column {missing[0]!r}", f"there are {first_of(names)}")
            return tuple(called[folded(name)] for name in channel_columns)
        others = tuple(column for column in range(width) if column not in labels)
        if self.window.ahead and width == self.channels:
            return tuple(range(width))
        if len(others) != self.channels:
            raise Refused(
                "another number of columns than the task's channels",
                f"{len(others)} besides the labels, expected {self.channels}",
            )
        return others

    def cut(
        self, steps: Iterable[TimeStep | Skip], form: str, name: str, *, labelled: bool = True
    ) -> Iterator[RawSamples | Skip]:
        """The windows of each stretch, (n, channels, length), as views; those of one stretch stay together.

        form: how the steps are stored. name: of the recording. labelled: whether the labels of steps are
        labels of the task. A stretch that is shorter than a window is skipped.
        """
        for label, stretch in groupby(steps, lambda step: None if isinstance(step, Skip) else step.label):
            if label is None:
                yield from (skip for skip in stretch if isinstance(skip, Skip))
                continue
            steps_of = [step for step in stretch if isinstance(step, TimeStep)]
            values = np.stack([step.values for step in steps_of])
            targets = [step.target for step in steps_of if step.target is not None]
            if len(values) < self.length:
                short = f"{name}: {len(values)} rows, expected {self.length}"
                yield Skip("a stretch shorter than a window", short)
                continue
            windows = np.lib.stride_tricks.sliding_window_view(values, self.length, axis=0)
            if targets and len(windows) <= self.window.ahead:
                short = f"{name}: {len(values)} rows, expected {self.length + self.window.ahead}"
                yield Skip("a stretch shorter than a window and its forecast", short)
                continue
            if targets:
                windows = windows[: len(windows) - self.window.ahead]
                targets = targets[self.length - 1 + self.window.ahead :]
            windows = windows[:: self.window.step]
            labels = targets[:: self.window.step] or [label] * len(windows)
            yield RawSamples(windows, labels if labelled else None, form, together=True)
