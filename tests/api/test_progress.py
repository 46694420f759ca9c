"""Progress on a terminal, in a notebook, and nowhere."""

import sys
from types import SimpleNamespace

import pytest

from device_runtime.api.progress import NotebookProgress, in_notebook, view_of
from device_runtime.simulation.compare.progress import (
    NoProgress,
    ProgressBars,
    ProgressLines,
    RoundDone,
    UpdatesTrained,
)
from device_runtime.simulation.compare.run_folder import RunName

RUNS = (RunName("choose", 0), RunName("drop", 0))


class Handle:
    """What IPython gives for a display: keeps the last thing shown."""

    def update(self, content, raw):
        assert raw
        self.content = content


@pytest.fixture
def terminal(monkeypatch):
    def is_one(answer):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: answer, raising=False)

    return is_one


def test_nothing_is_shown_where_it_is_not_wanted_or_there_is_nothing_to_do(terminal):
    terminal(True)
    assert isinstance(view_of(False, RUNS, 3), NoProgress)
    assert isinstance(view_of(True, (), 3), NoProgress)


def test_a_terminal_gets_bars_and_a_file_gets_lines_only_if_asked(terminal):
    terminal(True)
    bars = view_of(None, RUNS, 3)
    assert isinstance(bars, ProgressBars)
    bars.close()
    terminal(False)
    assert isinstance(view_of(None, RUNS, 3), NoProgress)
    assert isinstance(view_of(True, RUNS, 3), ProgressLines)


def test_a_notebook_is_known_by_its_kernel(monkeypatch):
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    assert not in_notebook()  # IPython on a terminal
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook()


def test_a_notebook_s_bar_moves_and_names_what_failed():
    handle = Handle()
    view = NotebookProgress(RUNS, 4, handle)
    view.working(RUNS[0], UpdatesTrained(1, 3))
    assert "choose-0: 3 updates trained for round 1 of 4" in handle.content["text/html"]
    view.moved(RUNS[0], RoundDone(1, 5.0, 0.5, 3))
    assert 'value="1" max="8"' in handle.content["text/html"]
    assert "accuracy 50.0%" in handle.content["text/plain"]
    view.ended(RUNS[0], "")
    view.ended(RUNS[1], "no <data>")
    view.close()
    assert 'value="8" max="8"' in handle.content["text/html"]
    assert "2 of 2 runs" in handle.content["text/html"]
    assert "drop-0: failed: no &lt;data&gt;" in handle.content["text/html"]
