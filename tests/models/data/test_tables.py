import msgspec
import numpy as np
import pytest

from device_runtime.models import data
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import SampleSource, delimited, open_samples
from device_runtime.models.data.report import lines, report
from device_runtime.models.errors import DataError

ROW = ",".join(str(n) for n in range(64))
PREPARED = (np.arange(64, dtype=np.float32).reshape(1, 8, 8) * np.float32(1 / 16) - np.float32(0.305)) / (
    np.float32(0.376)
)


def reasons(samples):
    return {skipped.reason: skipped.count for skipped in samples.skipped}


@pytest.mark.parametrize(
    "text, column",
    [
        (f"{ROW},7\n{ROW},3\n", ""),
        (f"{','.join(f'p{n}' for n in range(64))},label\n{ROW},7\n{ROW},3\n", ""),
        (f"class,{','.join(f'p{n}' for n in range(64))}\n7,{ROW}\n3,{ROW}\n", ""),
        (f"7,{ROW}\n3,{ROW}", "0"),
        (f"digit,{','.join(f'p{n}' for n in range(64))}\n\n7,{ROW}\n3,{ROW}\n", "digit"),
        (f"\ufeff{ROW},7\r\n{ROW},3\r\n".replace(",", ";"), ""),
    ],
)
def test_rows_of_features_and_a_label(tmp_path, bundle, text, column):
    (tmp_path / "a.csv").write_text(text, "utf-8")
    loaded = data.load(SampleSource(tmp_path / "a.csv", label_column=column), bundle.manifest)
    assert loaded.y.tolist() == [7, 3]
    assert np.array_equal(loaded.x[0], PREPARED)


def digits_table(path, header, rows=60):
    """Rows of a digit and 64 numbers that are mostly labels of the task too, as pixels at the edge are."""
    draw = np.random.default_rng(3)
    pixels = np.where(draw.random((rows, 64)) < 0.05, draw.integers(10, 17, (rows, 64)), 0)
    pixels[:, :8] = 0
    digits = [row % 10 for row in range(rows)]
    lines = [",".join(map(str, (digit, *row))) for digit, row in zip(digits, pixels.tolist(), strict=True)]
    path.write_text("\n".join([*header, *lines]))
    return digits


def test_the_column_that_holds_the_task_s_labels_is_taken_though_it_is_the_first(tmp_path, bundle):
    header = ",".join(["digit", *(f"pixel_{n}" for n in range(64))])
    digits = digits_table(tmp_path / "a.csv", [header])
    samples = open_samples(tmp_path / "a.csv", bundle.manifest)
    assert samples.training.y.tolist() == digits
    assert samples.forms == {
        "table of 64 columns, labels in column 'digit' (it holds labels of the task)": 60
    }


def test_several_columns_that_may_be_the_labels_are_refused_by_name(tmp_path, bundle):
    header = ",".join(["shown", "seen", *(f"pixel_{n}" for n in range(1, 64))])
    digits_table(tmp_path / "a.csv", [header])
    with pytest.raises(DataError, match="which column has the labels.* --label-column.*: shown, seen"):
        open_samples(tmp_path / "a.csv", bundle.manifest)
    column = SampleSource(tmp_path / "a.csv", label_column="shown")
    assert len(open_samples(column, bundle.manifest).training) == 60


def test_a_word_that_is_a_label_tells_its_column_where_others_are_not_of_the_task(tmp_path, bundle):
    manifest = msgspec.structs.replace(bundle.manifest, labels=tuple("abcdefghij"))
    rows = [f"{name},{ROW}" for name in ("a", "tree", "b")]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    samples = open_samples(tmp_path / "a.csv", manifest)
    assert samples.training.y.tolist() == [0, 1]
    assert reasons(samples) == {"label 'tree' is not of the task": 1}


def test_without_a_header_the_last_of_several_columns_has_the_labels_and_it_is_said(tmp_path, bundle, caplog):
    caplog.set_level("INFO")
    (tmp_path / "a.csv").write_text(f"{ROW},7\n{ROW},3\n")
    open_samples(tmp_path / "a.csv", bundle.manifest)
    assert "a.csv: labels are taken from column 64 (it is the last)" in caplog.text


def test_tables_are_read_from_a_folder_and_in_tabs(tmp_path, bundle):
    (tmp_path / "a.tsv").write_text(f"{ROW},7\n".replace(",", "\t"))
    (tmp_path / "b.csv").write_text(f"{ROW},3\n")
    assert data.load(tmp_path, bundle.manifest).y.tolist() == [7, 3]


def test_rows_that_are_none_of_the_task_are_left_out_by_reason(tmp_path, bundle):
    bad = (f"{ROW},77", f"1,2,{ROW},1", f"x{ROW},1", f"nan,{ROW.partition(',')[2]},1", f"{ROW},")
    (tmp_path / "a.csv").write_text("\n".join((f"{ROW},7", *bad, f"{ROW},1")))
    samples = open_samples(tmp_path, bundle.manifest)
    assert samples.training.y.tolist() == [7, 1]
    assert reasons(samples) == {
        "label '77' is not of the task": 1,
        "a row of another length": 1,
        "a feature that is no number": 1,
        "values are not finite": 1,
        "label '' is not of the task": 1,
    }


def test_files_that_a_table_names_have_its_labels_and_their_folder_is_no_class(tmp_path, bundle, digit_png):
    (tmp_path / "pictures").mkdir()
    for name in "abc":
        (tmp_path / "pictures" / f"{name}.png").write_bytes(digit_png(ord(name)))
    rows = (
        "file,label",
        "pictures/a.png,7",
        "pictures/b.png,3",
        "pictures/gone.png,3",
        "../a.png,1",
        "/b.png,1",
    )
    (tmp_path / "list.csv").write_text("\n".join(rows))
    samples = open_samples(tmp_path, bundle.manifest)
    assert samples.training.y.tolist() == [7, 3]
    assert reasons(samples) == {
        "a file name that leads out of the folder": 2,
        "cannot be read": 1,
        "label 'pictures' is not of the task": 1,  # c.png, which the list does not have
    }


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "a file without samples"),
        (b"\xff\xfe\x00", "not a table of UTF-8 text"),
        (b"a,b\nc,d\n", "another number of features"),
        (
            b'"' + b"x" * 200_000,
            "or a quote that is not closed: .*131,072 characters are the most",
        ),
    ],
)
def test_what_is_no_table_is_an_error_of_one_line(tmp_path, bundle, content, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "a.csv", bundle.manifest)


def test_a_column_that_is_not_there_is_said(tmp_path, bundle):
    (tmp_path / "a.csv").write_text(f"{ROW},7\n")
    with pytest.raises(DataError, match="no column 'kind' for the labels: a.csv: there are 0 to 64|a.csv"):
        data.load(SampleSource(tmp_path / "a.csv", label_column="kind"), bundle.manifest)


def test_a_column_that_is_called_none_is_one_like_others(tmp_path, bundle):
    names = ",".join(f"p{n}" for n in range(64))
    (tmp_path / "a.csv").write_text(f"none,{names}\n7,{ROW}\n3,{ROW}\n")
    loaded = data.load(SampleSource(tmp_path / "a.csv", label_column="none"), bundle.manifest)
    assert loaded.y.tolist() == [7, 3]
    (tmp_path / "b.csv").write_text(f"{names}\n{ROW}\n")
    with pytest.raises(DataError, match="no column 'none' for the labels"):
        data.load(SampleSource(tmp_path / "b.csv", label_column="none"), bundle.manifest)


def test_a_row_as_it_is_stored_does_not_depend_on_its_label(tmp_path):
    (tmp_path / "a.csv").write_text(f"{ROW},7\n{ROW},3\n")
    first, second = data.raw(tmp_path)
    assert np.array_equal(first, second)


def test_a_table_without_ends_of_lines_is_not_read_as_one_line(tmp_path, bundle, monkeypatch):
    monkeypatch.setattr(delimited, "LONGEST_LINE", 1000)
    (tmp_path / "a.csv").write_text("1,2," * 1000)
    (tmp_path / "b.csv").write_text(f"{ROW},7\n" + "1,2," * 1000)
    (tmp_path / "c.csv").write_text(f"{ROW},7\n")
    assert reasons(open_samples(tmp_path, bundle.manifest)) == {"a line that is too long": 2}


def test_a_row_beyond_float32_is_left_out_and_not_its_table(tmp_path, bundle):
    (tmp_path / "a.csv").write_text(f"{ROW},7\n{ROW.replace('5', '1e39', 1)},3\n")
    samples = open_samples(tmp_path, bundle.manifest)
    assert (samples.training.y.tolist(), reasons(samples)) == ([7], {"values are not finite": 1})


@pytest.mark.parametrize(
    "cell, reason",
    [
        ("9" * 30, "a feature that is no number"),
        ("9223372036854775808", "a feature that is no number"),
        ("12", "not what the task's input takes"),
        ("-1", "not what the task's input takes"),
    ],
)
def test_a_token_that_is_none_leaves_out_its_row_alone(tmp_path, bundle, cell, reason):
    spec = InputSpec((2,), dtype="int64", vocabulary=12)
    (tmp_path / "a.csv").write_text(f"3,4,7\n{cell},4,3\n")
    samples = open_samples(tmp_path, msgspec.structs.replace(bundle.manifest, input=spec))
    assert (samples.training.x.tolist(), reasons(samples)) == ([[3, 4]], {reason: 1})


def test_what_was_decided_by_default_is_in_the_report(tmp_path, bundle):
    rows = [f"{number};{ROW.replace(',', ';').replace('63', '6,5')};7" for number in range(3)]
    names = ";".join(["", *(f"p{n}" for n in range(64)), "label"])
    (tmp_path / "a.csv").write_text("\n".join([names, *rows]))
    text = lines(report(open_samples(tmp_path / "a.csv", bundle.manifest)))
    begin = text.index("decided by default")
    assert [line.strip() for line in text[begin + 1 : begin + 3]] == [
        "the first column is left out: it numbers the rows",
        "numbers have a decimal comma, as in '6,5'",
    ]
