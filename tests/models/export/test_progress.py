"""What an export shows while it is at work."""

import io
import logging
import sys

import pytest

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.progress import ExportStep, ProgressLine, progress_line

TRACING = ExportStep("tracing train.all", 2, 5)
COMPARING = ExportStep("comparing train.all with torch", 2, 5)


class Screen(io.StringIO):
    """A terminal that keeps what was written."""

    def isatty(self):
        return True

    @property
    def row(self):
        """What stands in the last row."""
        row = ""
        for part in self.getvalue().rpartition("\n")[2].split("\r"):
            row = part + row[len(part) :]
        return row.rstrip()


def test_a_terminal_has_one_line_with_the_step_and_the_seconds():
    screen = Screen()
    line = ProgressLine("lstm", screen, True, now=100.0)
    line.begin(TRACING, 100.4)
    assert screen.row == "exporting lstm: 2 of 5 graphs, 0 s; tracing train.all"
    line.begin(COMPARING, 141.0)
    assert screen.row == "exporting lstm: 2 of 5 graphs, 41 s; comparing train.all with torch"
    line.begin(TRACING, 142.0)
    assert screen.row == "exporting lstm: 2 of 5 graphs, 42 s; tracing train.all"
    line.clear()
    assert screen.row == "" and "\n" not in screen.getvalue()


def test_a_file_has_nothing_of_a_short_export_and_ever_fewer_lines_of_a_long_one():
    out = io.StringIO()
    line = ProgressLine("lstm", out, False, now=0.0)
    line.begin(TRACING, 0.0)
    for second in range(1, 5):
        line.tick(second)
    assert out.getvalue() == ""
    for second in range(5, 60):
        line.tick(second)
    assert [row.partition(" graphs, ")[2] for row in out.getvalue().splitlines()] == [
        f"{second} s; tracing train.all (for {second} s)" for second in (5, 10, 20, 40)
    ]
    line.begin(COMPARING, 70.0)
    line.tick(81.0)
    assert out.getvalue().endswith("81 s; comparing train.all with torch (for 11 s)\n")


def test_a_stream_that_is_closed_stops_no_export():
    out = Screen()
    line = ProgressLine("lstm", out, True, now=0.0)
    out.close()
    line.begin(TRACING, 1.0)
    line.tick(2.0)


def test_a_line_of_the_log_does_not_stand_behind_the_moving_line(monkeypatch):
    screen = Screen()
    handler = logging.StreamHandler(screen)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    with progress_line("lstm", screen) as begin:
        begin(TRACING)
        logging.getLogger("device_runtime.models.export").warning("batch norms stay frozen")
        assert screen.getvalue().splitlines()[-1].split("\r")[-1] == "batch norms stay frozen"
        begin(COMPARING)
        assert screen.row.startswith("exporting lstm: 2 of 5 graphs")
    assert (screen.row, handler.filters) == ("", [])


@pytest.fixture
def network():
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_each_graph_is_a_step_and_is_counted(network, tmp_path):
    from device_runtime.models.export.export import ExportSpec, ExportWatch, export

    steps, graphs = [], []
    sets = {"all": {}, "head": {}}
    spec = ExportSpec("net", InputSpec((3,)), ("a", "b"), sets=sets, precisions=("float16",))
    bundle = export(network, spec, tmp_path / "net", ExportWatch(steps.append, graphs.append))
    assert [graph.name for graph in graphs] == list(bundle.manifest.graphs)
    assert {step.graphs for step in steps} == {len(graphs)} == {6}
    assert [(step.finished, step.what) for step in steps] == [
        (0, "looking at the network"),
        (0, "tracing forward"),
        (0, "comparing forward with torch"),
        (1, "tracing the losses"),
        (1, "comparing loss.all with torch"),
        (2, "comparing loss.head with torch"),
        (3, "tracing train.all/head"),
        (3, "comparing train.all with torch"),
        (4, "comparing train.head with torch"),
        (5, "writing forward in float16"),
    ]


def test_export_from_python_shows_a_terminal_what_it_is_at_unless_told_not_to(network, tmp_path, monkeypatch):
    import device_runtime as dr

    for progress in (True, False):
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        place = tmp_path / str(progress)
        dr.export(network, place, input=(3,), labels="ab", tunable="head", progress=progress)
        assert ("comparing train.head with torch" in screen.getvalue()) is progress
        assert screen.row == ""


def test_a_short_export_into_a_file_is_silent(network, tmp_path, capsys):
    import device_runtime as dr

    dr.export(network, tmp_path / "net", input=(3,), labels="ab", tunable="head")
    assert capsys.readouterr().err == ""
