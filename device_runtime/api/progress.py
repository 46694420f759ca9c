"""Shows the progress of a simulation where it was called: on a terminal, in a notebook, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from typing import Any

from device_runtime.simulation.compare.progress import (
    NoProgress,
    ProgressBars,
    ProgressLines,
    ProgressView,
    RoundDone,
    Rounds,
    UpdatesTrained,
    round_text,
    rounds_of_runs,
    within_round_text,
)
from device_runtime.simulation.compare.run_folder import RunName


def view_of(progress: bool | None, missing: Sequence[RunName], rounds: Rounds) -> ProgressView:
    """The view of these runs, of so many rounds, by run where they differ.

    progress: False shows nothing; None shows bars on a terminal and in a notebook, and nothing elsewhere;
    True shows lines elsewhere.
    """
    if progress is False or not missing:
        return NoProgress()
    if in_notebook():
        return NotebookProgress(missing, rounds)
    if sys.stderr.isatty():
        return ProgressBars(missing, rounds, sys.stderr)
    return ProgressLines(missing, rounds, sys.stderr) if progress else NoProgress()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """A progress bar of all runs and a line on the last event, below the cell of a notebook.

    `handle` is a display handle of IPython, whose `update` replaces what it shows.
    """

    def __init__(self, names: Sequence[RunName], rounds: Rounds, handle: Any = None) -> None:
        self._rounds = rounds_of_runs(names, rounds)
        self._done = dict.fromkeys(names, 0)
        self._ended = 0
        self._failed: list[str] = []
        self._handle = handle or _displayed(self._page(""))

    def moved(self, name: RunName, tick: RoundDone) -> None:
        self._done[name] = tick.round
        self._show(f"{name}: round {tick.round} of {self._rounds[name]}, {round_text(tick)}")

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        self._show(f"{name}: {within_round_text(now)} of {self._rounds[name]}")

    def ended(self, name: RunName, why: str) -> None:
        self._ended += 1
        self._done[name] = self._rounds[name]
        self._failed += [f"{name}: failed: {why}"] if why else []
        self._show(f"{self._ended} of {len(self._done)} runs are finished")

    def close(self) -> None:
        """Nothing to restore: the last state stays."""

    def _show(self, text: str) -> None:
        self._handle.update({"text/html": self._page(text), "text/plain": text}, raw=True)

    def _page(self, text: str) -> str:
        whole = sum(self._rounds[name] for name in self._done)
        lines = "<br>".join(escape(line) for line in (text, *self._failed))
        return f'<progress value="{sum(self._done.values())}" max="{whole}"></progress> {lines}'


def _displayed(page: str) -> Any:
    from IPython.display import display

    return display({"text/html": page, "text/plain": ""}, raw=True, display_id=True)
