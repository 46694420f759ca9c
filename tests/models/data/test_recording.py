"""Recordings become windows: which rows, which columns, which label, and which side of the hold-out."""

import sqlite3
from contextlib import closing

import msgspec
import numpy as np
import pytest

from device_runtime.models import data
from device_runtime.models.bundles.inputs import InputSpec, WindowInput
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.data import SampleSource, Selection, open_samples
from device_runtime.models.data.reading import inputs
from device_runtime.models.data.report import describe_input
from device_runtime.models.errors import DataError


@pytest.fixture
def task(bundle):
    """The manifest of a task: windows of 4 steps of 2 channels, one every 2 steps, sitting or walking."""
    spec = InputSpec((2, 4), window=WindowInput(2))
    return msgspec.structs.replace(bundle.manifest, input=spec, labels=("sit", "walk"))


def with_columns(task, *names):
    spec = msgspec.structs.replace(task.input, window=WindowInput(2, names))
    return msgspec.structs.replace(task, input=spec)


def rows(*numbers, label=None):
    """Time steps: channel 0 is the number, channel 1 ten times it."""
    end = "" if label is None else f",{label}"
    return [f"{n},{10 * n}{end}" for n in numbers]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def reasons(samples):
    return {skipped.reason: skipped.examples for skipped in samples.skipped}


def test_windows_are_cut_at_every_step_within_the_recording(tmp_path, task):
    """7 rows: windows from rows 0 and 2; one from row 4 would end beyond the last."""
    loaded = data.load(write(tmp_path / "a.csv", ["x,y,label", *rows(*range(7), label="walk")]), task)
    assert loaded.x.tolist() == [
        [[0, 1, 2, 3], [0, 10, 20, 30]],
        [[2, 3, 4, 5], [20, 30, 40, 50]],
    ]
    assert loaded.y.tolist() == [1, 1]


def test_no_window_spans_a_change_of_label_or_a_row_that_cannot_be_read(tmp_path, task):
    lines = ["x,y,label", *rows(0, 1, 2, 3, 4, label="sit"), *rows(5, 6, 7, 8, label="walk")]
    lines += ["9,-,walk", *rows(10, 11, 12, 13, label="walk"), *rows(14, label="sit")]
    samples = open_samples(write(tmp_path / "a.csv", lines), task)
    assert samples.training.x[:, 0, 0].tolist() == [0, 5, 10]
    assert samples.training.y.tolist() == [0, 1, 1]
    assert reasons(samples) == {
        "a feature that is no number": ("a.csv row 11: column 'y': '-'",),
        "a stretch shorter than a window": ("a.csv: 1 rows, expected 4",),
    }


def test_label_is_that_of_the_folder_or_the_name_of_a_file_without_labels(tmp_path, task):
    write(tmp_path / "walk" / "monday" / "a.csv", ["x,y", *rows(*range(4))])
    write(tmp_path / "sit.csv", rows(*range(10, 14)))
    samples = open_samples(tmp_path, task)
    assert dict(zip(samples.training.x[:, 0, 0].tolist(), samples.training.y.tolist(), strict=True)) == {
        0: 1,
        10: 0,
    }
    assert samples.forms == {"recording": 1, "recording, all 'sit'": 1}


def test_channels_are_found_by_their_names(tmp_path, task):
    """Time stamps and other columns are left out; a table without labels has no column that is taken."""
    lines = ["time,Y,who,X", "0.0,0,ann,0", "0.1,10,ann,1", "0.2,20,ann,2", "0.3,30,ann,3"]
    loaded = data.load(write(tmp_path / "walk.csv", lines), with_columns(task, "x", "y"))
    assert loaded.x.tolist() == [[[0, 1, 2, 3], [0, 10, 20, 30]]]
    assert loaded.y.tolist() == [1]


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (
            (),
            r"columns than the task's channels: 1 \(a.csv: 3 besides the labels, expected 2\)",
        ),
        (("x", "z"), r"no column 'z': 1 \(a.csv: there are time, x, y, label\)"),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_what_there_is(tmp_path, task, names, refused):
    lines = ["time,x,y,label", *(f"{n},{n},{n},sit" for n in range(4))]
    with pytest.raises(DataError, match=refused):
        data.load(write(tmp_path / "a.csv", lines), with_columns(task, *names))


def test_windows_of_a_stretch_are_held_out_together_also_when_it_grows(tmp_path, task):
    for number in range(40):
        start = 100 * number
        write(tmp_path / "walk" / f"{number}.csv", rows(*range(start, start + 12)))
    samples = open_samples(tmp_path, task, Selection(held_out=0.3))

    def recordings(side):
        return (side.x[:, 0, 0] // 100).astype(int).tolist()

    holdout = set(recordings(samples.holdout))
    assert 0 < len(holdout) < 40 and not holdout & set(recordings(samples.training))
    least = min(holdout)
    write(tmp_path / "walk" / f"{least}.csv", rows(*range(100 * least, 100 * least + 30)))
    samples.refresh()
    assert set(recordings(samples.holdout)) == holdout
    assert recordings(samples.holdout).count(least) == 14


def test_recording_without_labels_is_taken_for_predictions(tmp_path, task):
    file = write(tmp_path / "new.csv", ["x,y", *rows(*range(6))])
    assert inputs(file, task.input, task.labels).shape == (2, 2, 4)
    broken = write(tmp_path / "broken.csv", ["x,y", *rows(*range(4)), "-,-", *rows(*range(6, 8))])
    assert inputs(broken, task.input, task.labels)[:, 0, 0].tolist() == [0]
    with pytest.raises(DataError, match="a stretch shorter than a window: .*3 rows, expected 4"):
        inputs(write(tmp_path / "short.csv", rows(0, 1, 2)), task.input, task.labels)


def test_rows_of_a_query_are_time_steps(tmp_path, task):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE seen (t, x, y, what)")
        steps = [(n, n, 10 * n, "sit" if n < 5 else "walk") for n in range(9)]
        database.executemany("INSERT INTO seen VALUES (?, ?, ?, ?)", steps)
        database.commit()
    query = "SELECT x, y, what FROM seen ORDER BY t"
    loaded = data.load(SampleSource(tmp_path / "a.db", query), task)
    assert (loaded.x[:, 0, 0].tolist(), loaded.y.tolist()) == ([0, 5], [0, 1])


def test_table_in_a_class_folder_is_refused_where_the_task_takes_no_windows(tmp_path, bundle):
    write(tmp_path / "7" / "a.csv", rows(1))
    with pytest.raises(DataError, match="a recording, and the task takes no windows"):
        data.load(tmp_path, bundle.manifest)


def test_windows_that_were_cut_before_are_taken_as_any_arrays(tmp_path, task):
    x = np.arange(24.0).reshape(3, 2, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.array(["sit", "walk", "walk"]))
    assert np.array_equal(data.load(tmp_path / "a.npz", task).x, x)


def test_input_is_described():
    spec = InputSpec((3, 100), window=WindowInput(50, ("ax", "ay", "az")))
    assert describe_input(spec) == "windows of 100 time steps of the columns ax, ay, az, one every 50"
    spec = InputSpec((2, 40), window=WindowInput(40))
    assert describe_input(spec) == "windows of 40 time steps, one every 40"


@pytest.mark.parametrize(
    ("shape", "columns", "refused"),
    [
        ((2, 4, 4), (), r"input is float32 \(2, 4, 4\), expected windows \(channels, length\)"),
        ((2, 4), ("x",), "columns are x, expected 2 different ones"),
        ((2, 4), ("x", "x"), "columns are x, x, expected 2 different ones"),
    ],
)
def test_windows_that_do_not_fit_the_input_are_refused(shape, columns, refused):
    with pytest.raises(ValueError, match=refused):
        InputSpec(shape, window=WindowInput(2, columns))


# Targets that are numbers: of the last row of a window, or of a row ahead.


@pytest.fixture
def numbers(task):
    """The manifest of a task: windows as above, whose targets are numbers in these columns."""

    def make(*columns, channels=(), horizon=msgspec.UNSET):
        target = targets_of("mse", columns, columns=columns, mean=(1.0,), std=(2.0,))
        window = WindowInput(2, channels, horizon)
        spec = InputSpec((2, 4), window=window)
        return msgspec.structs.replace(task, input=spec, labels=columns, loss=target)

    return make


def lives(count, last=100):
    """Time steps of a machine with the hours that are left to it."""
    return [f"{n},{10 * n},{last - n}" for n in range(count)]


def test_a_window_has_the_number_of_its_last_row(tmp_path, numbers):
    """7 rows: windows of rows 0 to 3 and 2 to 5, with 97 and 95 hours left."""
    file = write(tmp_path / "a.csv", ["x,y,life", *lives(7)])
    task = numbers("life")
    samples = open_samples(file, task)
    assert samples.training.x[:, 0].tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert task.target.restore(samples.training.y).ravel().tolist() == [97, 95]
    assert list(samples.forms) == ["recording, targets in life"]


def test_several_targets_are_found_by_their_names(tmp_path, numbers):
    lines = ["time,life,x,y,wear", *(f"{n},{100 - n},{n},{10 * n},{n / 2}" for n in range(7))]
    samples = open_samples(write(tmp_path / "a.csv", lines), numbers("wear", "life", channels=("x", "y")))
    assert (samples.training.y * 2 + 1).tolist() == [[1.5, 97], [2.5, 95]]


def test_a_forecast_takes_the_number_of_a_row_ahead(tmp_path, numbers):
    """Two steps ahead of rows 0 to 3 is row 5, of rows 2 to 5 row 7; a window from row 4 would need row 9."""
    file = write(tmp_path / "a.csv", ["x,y,life", *lives(9)])
    samples = open_samples(file, numbers("life", horizon=2))
    assert samples.training.x[:, 0, 0].tolist() == [0, 2]
    assert (samples.training.y * 2 + 1).ravel().tolist() == [95, 93]


@pytest.mark.parametrize("channels", [(), ("x", "y")])
def test_a_forecast_may_be_of_a_channel_itself(tmp_path, numbers, channels):
    file = write(tmp_path / "a.csv", ["x,y", *rows(*range(7))])
    samples = open_samples(file, numbers("y", channels=channels, horizon=1))
    assert samples.training.x[:, 1].tolist() == [[0, 10, 20, 30], [20, 30, 40, 50]]
    assert (samples.training.y * 2 + 1).ravel().tolist() == [40, 60]


def test_a_number_that_is_missing_leaves_out_its_window_only(tmp_path, numbers):
    lines = ["x,y,life", *lives(9)]
    lines[4], lines[5] = "3,30,", "4,40,soon"  # the window of rows 0 to 3 has none; no window ends at row 4
    samples = open_samples(write(tmp_path / "a.csv", lines), numbers("life"))
    assert samples.training.x[:, 0, 0].tolist() == [2, 4]
    assert (samples.training.y * 2 + 1).ravel().tolist() == [95, 93]
    assert list(reasons(samples)) == ["a target that is no number"]


def test_a_gap_ends_a_stretch_also_where_targets_are_numbers(tmp_path, numbers):
    lines = ["x,y,life", *lives(10)]
    lines[5] = "4,-,96"
    samples = open_samples(write(tmp_path / "a.csv", lines), numbers("life"))
    assert samples.training.x[:, 0, 0].tolist() == [0, 5]
    short = open_samples(write(tmp_path / "b.csv", lines), numbers("life", horizon=1))
    assert short.training.x[:, 0, 0].tolist() == [5]
    assert "a stretch shorter than a window and its forecast" in reasons(short)


def test_recordings_in_folders_have_the_numbers_of_their_rows_or_of_the_folder(tmp_path, numbers):
    write(tmp_path / "d" / "pump" / "1.csv", ["x,y,life", *lives(4)])
    write(tmp_path / "d" / "12.5" / "2.csv", ["x,y", *rows(*range(4))])
    write(tmp_path / "d" / "fan" / "3.csv", ["x,y", *rows(*range(4))])
    samples = open_samples(tmp_path / "d", numbers("life"))
    assert sorted((samples.training.y * 2 + 1).ravel().tolist()) == [12.5, 97]
    assert reasons(samples)["a target that is no number"][0].startswith("fan/3.csv")


def test_rows_of_a_database_may_have_numbers_as_targets(tmp_path, numbers):
    with closing(sqlite3.connect(tmp_path / "a.db")) as opened:
        opened.execute("CREATE TABLE seen (x REAL, y REAL, life REAL)")
        opened.executemany("INSERT INTO seen VALUES (?, ?, ?)", [(n, 10 * n, 100 - n) for n in range(7)])
        opened.commit()
    source = SampleSource(tmp_path / "a.db", "SELECT life, x, y FROM seen")
    samples = open_samples(source, numbers("life"))
    assert (samples.training.y * 2 + 1).ravel().tolist() == [97, 95]


def test_predictions_need_no_targets(tmp_path, numbers):
    task = numbers("life", horizon=3)
    for lines in (["x,y", *rows(*range(6))], ["x,y,life", *lives(6)]):
        file = write(tmp_path / "a.csv", lines)
        named = msgspec.structs.replace(task.input, window=WindowInput(2, ("x", "y"), 3))
        assert inputs(file, named, task.labels, target=task.target)[:, 0, 0].tolist() == [0, 2]


def test_a_column_of_targets_that_is_missing_is_named(tmp_path, numbers):
    file = write(tmp_path / "a.csv", ["x,y,hours", *lives(7)])
    with pytest.raises(
        DataError, match="no column 'life' for the labels or targets: 1 .*there are x, y, hours"
    ):
        open_samples(file, numbers("life"))


def test_the_report_says_how_far_ahead_targets_are(numbers):
    assert describe_input(numbers("life", horizon=5).input).endswith("one every 2, targets 5 steps ahead")


# Recordings of several clients in one table.


def of_clients(count):
    """Rows in the order of time: ann has n and 10 n, bob 100 + n and 1000 + 10 n, one after the other."""
    steps = [(who, start + n) for n in range(count) for who, start in (("ann", 0), ("bob", 100))]
    return ["who,x,y,label", *(f"{who},{value},{10 * value},sit" for who, value in steps)]


@pytest.mark.parametrize("names", [(), ("x", "y")])
def test_no_window_spans_two_clients_also_where_their_rows_alternate(tmp_path, task, names):
    file = write(tmp_path / "a.csv", of_clients(6))
    task = with_columns(task, *names) if names else task
    loaded = data.load(SampleSource(file, client_column="who"), task)
    assert loaded.x[:, 0].tolist() == [
        [0, 1, 2, 3], [2, 3, 4, 5], [100, 101, 102, 103], [102, 103, 104, 105],
    ]  # fmt: skip


def test_a_row_that_cannot_be_read_is_a_gap_of_its_client_alone(tmp_path, task):
    lines = of_clients(7)
    lines[5] = lines[5].replace(",2,", ",-,")  # ann's third
    samples = open_samples(SampleSource(write(tmp_path / "a.csv", lines), client_column="who"), task)
    assert samples.training.x[:, 0, 0].tolist() == [3, 100, 102]
    assert reasons(samples) == {
        "a feature that is no number": ("a.csv row 6: column 'x': '-'",),
        "a stretch shorter than a window": ("a.csv, client 'ann': 2 rows, expected 4",),
    }


def test_channels_may_be_chosen_by_other_names_than_the_task_s(tmp_path, task):
    lines = ["time,north,east,label", *(f"{n},{n},{10 * n},sit" for n in range(4))]
    source = SampleSource(write(tmp_path / "a.csv", lines), feature_columns="north,east")
    assert data.load(source, with_columns(task, "x", "y")).x.tolist() == [[[0, 1, 2, 3], [0, 10, 20, 30]]]


def test_numbers_of_a_recording_may_have_a_decimal_comma(tmp_path, numbers):
    lines = ["x;y;life", *(f"{n},5;{n};{100 - n},25" for n in range(4))]
    samples = open_samples(write(tmp_path / "a.csv", lines), numbers("life"))
    assert samples.training.x[0, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert (samples.training.y * 2 + 1).ravel().tolist() == [97.25]


def test_a_missing_target_is_said_with_its_row_and_column(tmp_path, numbers):
    lines = ["x,y,life", *lives(6)]
    lines[6] = "5,50,soon"
    samples = open_samples(write(tmp_path / "a.csv", lines), numbers("life"))
    assert reasons(samples) == {"a target that is no number": ("a.csv row 7: life is 'soon'",)}
