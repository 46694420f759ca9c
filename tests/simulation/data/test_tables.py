import tracemalloc

import numpy as np
import pytest

from device_runtime.models.data import labels
from device_runtime.profiles.fleets import fleet as presets
from device_runtime.simulation.data import divide_fleet, load
from device_runtime.simulation.data.loading import prepared_targets
from device_runtime.simulation.data.spec import DataSpec, GroupData
from device_runtime.simulation.errors import DataSetError

ROWS = "w,x,price,area\n1,2,130,-3\n3,4,70,6\n5,6,100,0\n7,8,90,1\n"


def loaded(tmp_path, text, **settings):
    (tmp_path / "a.csv").write_text(text)
    return load(DataSpec(source="table", path=str(tmp_path / "a.csv"), test_share=0.25, **settings), 0)


def test_several_columns_are_targets(tmp_path):
    data = loaded(tmp_path, ROWS, label_column="price, area")
    assert (data.labels, data.train_x.shape, data.test_y.shape) == (("price", "area"), (3, 2), (1, 2))
    both = np.concatenate([data.train_y, data.test_y])
    assert sorted(both.tolist()) == [[70, 6], [90, 1], [100, 0], [130, -3]]


def test_one_column_is_targets_or_classes_by_what_it_holds(tmp_path):
    assert loaded(tmp_path, ROWS).train_y.shape == (3, 1)
    words = loaded(tmp_path, "w,kind\n1,cat\n2,dog\n3,cat\n4,dog\n")
    assert (words.labels, words.train_y.dtype) == (("cat", "dog"), np.int64)
    assert loaded(tmp_path, "w,kind\n1,0\n2,1\n3,2\n4,1\n").labels == ("0", "1", "2")


def test_whole_numbers_from_0_may_be_values(tmp_path, exported):
    from msgspec.structs import replace

    from device_runtime.models.bundles.bundle import Bundle
    from device_runtime.models.bundles.targets import targets_of

    manifest = Bundle.open(exported.of_loss("mse")).manifest
    counts = replace(manifest, loss=targets_of("mse", ("count",), std=(2.0,)))
    data = loaded(tmp_path, "w,count\n1,0\n2,1\n3,2\n4,1\n")
    assert set(prepared_targets(data, counts, data.train_y)[:, 0].tolist()) <= {0.0, 0.5, 1.0}


def test_a_second_file_is_evaluated_on(tmp_path):
    (tmp_path / "b.csv").write_text("w,x,price,area\n0,0,1,2.5\n")
    data = loaded(tmp_path, ROWS, test_path=str(tmp_path / "b.csv"))
    assert (len(data.train_x), data.test_y.tolist()) == (4, [[2.5]])


def test_columns_of_a_second_file_are_found_by_their_names(tmp_path):
    (tmp_path / "b.csv").write_text("area,x,price,w\n2.5,20,3,10\n")
    data = loaded(tmp_path, ROWS, test_path=str(tmp_path / "b.csv"))
    assert (data.test_x.tolist(), data.test_y.tolist()) == ([[10, 20, 3]], [[2.5]])
    (tmp_path / "b.csv").write_text("w,y,price,area\n0,0,1,2.5\n")
    with pytest.raises(DataSetError, match=r"b.csv has the features w, y, price; .*a.csv has w, x, price"):
        loaded(tmp_path, ROWS, test_path=str(tmp_path / "b.csv"))


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (ROWS, "size", "no column 'size' for the labels or targets: there are w, x, price, area"),
        ("w,x\n", "", "a file without samples"),
        ("w,x\nred,cat\nblue,dog\n", "x", "column 'w' holds words, such as 'red': leave it out by --feat"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, text, column, message):
    with pytest.raises(DataSetError, match=message):
        loaded(tmp_path, text, label_column=column)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (ROWS + "1,2,3\n", "", "a row of another length: 1 (a.csv row 6: 3 cells, expected 4)"),
        (
            ROWS.replace("70", "much"),
            "price,area",
            "a target that is no number: 1 (a.csv row 3: price is 'much')",
        ),
        (
            ROWS.replace("1,2,", "one,2,"),
            "",
            "a feature that is no number: 1 (a.csv row 2: column 'w': 'one'",
        ),
        (ROWS.replace("5,6,", "5,nan,"), "", "values are not finite: 1 (a.csv row 4: column 'x': 'nan')"),
        (ROWS.replace("5,6,", "1e39,6,"), "", "values are not finite: 1 (a.csv row 4: column 'w': '1e39')"),
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_and_said_as_on_a_device(tmp_path, text, column, message):
    data = loaded(tmp_path, text, label_column=column)
    assert len(data.train_y) + len(data.test_y) == (4 if len(text) > len(ROWS) + 4 else 3)
    assert any(note.startswith(f"left out: {message}") for note in data.notes), data.notes


def test_groups_name_no_classes_where_targets_are_numbers(tmp_path):
    data = loaded(tmp_path, "w,price\n" + "".join(f"{i},{i}.5\n" for i in range(40)))
    fleet = presets.load("straggler-heavy").draw(8, 0)
    name = next(iter(fleet.spec.groups))
    spec = DataSpec(source="table", path="a.csv", groups={name: GroupData(classes=(7, 8))})
    with pytest.raises(
        DataSetError, match=f"data.groups.{name} names classes, and the targets are numbers .price"
    ):
        divide_fleet(data, spec, fleet)


def test_labels_that_recur_are_classes_and_those_that_are_all_different_are_targets(tmp_path):
    rows = [(i, i % 3 + 1) for i in range(12)]
    data = loaded(tmp_path, "w,label\n" + "".join(f"{w},{label}\n" for w, label in rows))
    assert (data.labels, data.train_y.dtype) == (("1", "2", "3"), np.int64)
    data = loaded(tmp_path, "w,label\n" + "".join(f"{w},{w}\n" for w, _ in rows))
    assert data.train_y.shape == (9, 1)


def test_a_table_with_a_wide_cell_takes_no_more_memory_than_without(tmp_path):
    rows = "".join(f"{i % 7}.25,{i % 5}.5,{'cat' if i % 2 else 'dog'}\n" for i in range(2000))
    peaks = []
    for cell in ("x", "x" * 1500):
        tracemalloc.start()
        loaded(tmp_path, f"a,b,label\n{cell},1,cat\n{rows}")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000  # one array of fixed width would take 2000 * 3 * 6000 bytes


def test_short_rows_take_no_more_than_three_times_their_size(tmp_path):
    loaded(tmp_path, ROWS)  # imports
    peaks = []
    for rows in (16_000, 40_000):
        tracemalloc.start()
        loaded(tmp_path, "a,b,c,label\n" + "1,2,3,0\n4,5,6,1\n" * (rows // 2))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 3 * 24_000 * len("1,2,3,0\n")


def test_classes_are_the_same_however_many_there_are(tmp_path):
    names = [f"k{number % 300}" for number in range(900)]  # more than a byte numbers
    data = loaded(tmp_path, "n,kind\n" + "".join(f"{i},{name}\n" for i, name in enumerate(names)))
    assert data.train_y.dtype == data.test_y.dtype == np.int64
    x, y = np.concatenate([data.train_x, data.test_x])[:, 0], np.concatenate([data.train_y, data.test_y])
    assert [data.labels[number] for number in y] == [names[int(i)] for i in x]
    assert sorted(x.tolist()) == list(range(900))
    assert (np.diff(data.train_x[:, 0]) > 0).all() and (np.diff(data.test_x[:, 0]) > 0).all()


@pytest.mark.parametrize("word", [False, True])
def test_targets_of_many_different_numbers_are_as_of_few(tmp_path, monkeypatch, word):
    cells = [f"{sign}{i / 7:.{i % 5}f}" for i in range(200) for sign in ("", "-")]
    text = "n,price\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate([*cells, "n/a"][: 400 + word]))
    few = loaded(tmp_path, text, label_column="price")
    monkeypatch.setattr(labels, "MOST", 3)
    many = loaded(tmp_path, text, label_column="price")
    assert few.train_y.tolist() == many.train_y.tolist() and few.test_y.tolist() == many.test_y.tolist()
    assert few.labels == many.labels and few.has_columns is not word


def test_targets_of_many_different_numbers_take_no_more_than_three_times_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(labels, "MOST", 100)
    loaded(tmp_path, ROWS)  # imports
    peaks, sizes = [], []
    for rows in (8_000, 16_000):
        text = "a,b,c,price\n" + "".join(f"0.25000,1.25000,2.25000,{i / 70001:.6f}\n" for i in range(rows))
        tracemalloc.start()
        loaded(tmp_path, text)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(len(text))
    assert peaks[1] - peaks[0] < 3 * (sizes[1] - sizes[0])
