# ruff: noqa: E501
"""Small files of every sort: a device and a simulation make the same samples, labels and refusals of each."""

import argparse
import io
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import device_runtime as dr
from device_runtime.cli.research import partition
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.data import LocalSamples, SampleSource, Selection, open_samples
from device_runtime.models.data.report import report
from device_runtime.models.errors import DataError
from device_runtime.simulation.data import load
from device_runtime.simulation.errors import DataSetError

ANIMALS, DIGITS = ("cat", "dog", "bird"), ("0", "1", "2")
ROWS = "1,2,3,cat\n4,5,6,dog\n7,8,9,bird\n1,5,9,cat\n"
HEAD = "a,b,c,label\n"
LAST = HEAD + ROWS
FIRST = "label,a,b,c\n" + "".join(
    f"{row.split(',')[3]},{','.join(row.split(',')[:3])}\n" for row in ROWS.split()
)
NUMBERED = ROWS.replace("cat", "0").replace("dog", "1").replace("bird", "2")
TEXTS = "text,label\ngood film,cat\nbad end,dog\nso so,bird\nfine,cat\n"


@dataclass(frozen=True)
class Case:
    """A file. task: its labels. count: the samples that are read; 0: it is refused. said: in what is said."""

    content: bytes
    count: int = 4
    message: str = ""
    task: tuple[str, ...] = ANIMALS
    name: str = "a.csv"
    source: str = "table"
    columns: dict[str, str] = field(default_factory=dict)
    loss: str = "cross-entropy"


def table(text: str, count: int = 4, message: str = "", encoding: str = "utf-8", **settings: Any) -> Case:
    return Case(text.encode(encoding), count, message, **settings)


def npz(count: int = 4, message: str = "", task: tuple[str, ...] = ANIMALS, **arrays: Any) -> Case:
    file = io.BytesIO()
    pickled = any(np.asarray(array).dtype == object for array in arrays.values())
    np.savez(file, allow_pickle=pickled, **arrays)
    return Case(file.getvalue(), count, message, task, "a.npz", "npz")


def members(files: dict[str, bytes], message: str, method: int = zipfile.ZIP_STORED, count: int = 0) -> Case:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return Case(file.getvalue(), count, message, name="a.npz", source="npz")


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def header(text: str) -> bytes:
    """A .npy file whose header says this, and nothing behind it."""
    padded = text.encode() + b" " * (64 - (len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded


X = np.arange(12.0).reshape(4, 3)
Y = np.array([0, 1, 2, 0])
HUGE = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3), }"
WORDS = ROWS.replace("cat", "Katze").replace("dog", "Hund").replace("bird", "Vogel")
CASES = {
    "label last": table(LAST, message="column 'label' (by its name)"),
    "label first": table(FIRST, message="column 'label' (by its name)"),
    "label in the middle": table("a,Class,b,c\n1,cat,2,3\n4,dog,5,6\n7,bird,8,9\n1,cat,5,9\n"),
    "another name, words": table("kind,a,b,c\n" + FIRST.split("\n", 1)[1], message="holds labels of the task"),
    "no header": table(ROWS, message="column 3"),
    "no header, label first": table(FIRST.split("\n", 1)[1], message="column 0"),
    "semicolons": table(LAST.replace(",", ";")),
    "tabs": table(LAST.replace(",", "\t"), name="a.tsv"),
    "tabs in .csv": table(LAST.replace(",", "\t")),
    "pipes": table(LAST.replace(",", "|")),
    "commas in .tsv": table(LAST, name="a.tsv"),
    "quotes": table(LAST.replace("cat", '"cat"').replace("a,b", '"a","b"')),
    "UTF-8 mark": table(LAST, encoding="utf-8-sig"),
    "UTF-16": table(LAST, encoding="utf-16"),
    "UTF-32": table(LAST, encoding="utf-32"),
    "UTF-16 without mark": table(LAST, encoding="utf-16-le"),
    "CRLF": table(LAST.replace("\n", "\r\n")),
    "no end of the last line": table(LAST.rstrip("\n")),
    "blank lines": table("\n" + LAST.replace("\n4", "\n\n,,,\n4")),
    "comments above": table("# made by a sensor\n# in 2024, on a roof\n" + LAST),
    "header as a comment": table("# " + LAST),
    "separator named": table("sep=;\n" + LAST.replace(",", ";")),
    "separators at the ends": table(LAST.replace("\n", ",\n")),
    "separators at the ends of rows": table(HEAD + ROWS.replace("\n", ",\n")),
    "two columns of one name": table(LAST.replace("a,b,", "a,a,")),
    "two columns called label": table(
        LAST.replace("a,b,", "label,b,"), 4, "column 'label'", columns={"label_column": "3"}
    ),
    "two columns called label, none chosen": table(
        LAST.replace("a,b,", "Label,b,").replace("1,2", "cat,2").replace("4,5", "dog,5"), 0, "which column has"
    ),
    "label and target": table(
        LAST.replace("c,label", "target,class").replace("3,", "cat,"), 0, "several may be: target, class"
    ),
    "ragged": table(LAST + "1,2\n1,2,3,4,cat\n", message="a row of another length: 2"),
    "NaN, inf and empty": table(LAST + "nan,1,1,cat\ninf,1,1,dog\n,1,1,dog\nNA,1,1,cat\n", message="not finite: 2"),
    "underscores": table(LAST + "1_000,1,1,cat\n", message="a feature that is no number: 1"),
    "true and false": table(LAST.replace("1,", "true,").replace("4,", "False,").replace("7,", "true,")),
    "dates": table(LAST.replace("1,", "2024-01-03,").replace("4,", "2024-01-04,").replace("7,", "x,"), 0, "words"),
    "a date left out": table(
        LAST.replace("a,", "day,a,").replace("\n1,", "\nmon,1,").replace("\n4", "\ntue,4").replace("\n7", "\nwed,7"),
        columns={"feature_columns": "-day", "label_column": "label"},
    ),
    "columns chosen": table(
        LAST.replace("a,", "x,a,").replace("\n1,", "\n0,1,").replace("\n4", "\n5,4").replace("\n7", "\n6,7"),
        columns={"feature_columns": "a,2-3"},
    ),
    "index without a name": table(
        "," + HEAD + "".join(f"{i},{row}\n" for i, row in enumerate(ROWS.split())), message="numbers the rows"
    ),
    "index as R writes it": table(HEAD + "".join(f"{i},{row}\n" for i, row in enumerate(ROWS.split(), 1))),
    "id": table("id," + HEAD + "".join(f"{7 * i},{row}\n" for i, row in enumerate(ROWS.split())), message="'id' is"),
    "decimal comma": table(
        LAST.replace(",", ";").replace("2;", "2,5;").replace("6;", "0,25;"), message="numbers have a decimal comma"
    ),
    "thousands": table(LAST.replace("2,", '"1,234.5",').replace("8,", '"1,000",'), message="between thousands"),
    "decimal comma or thousands": table(LAST.replace("2,", '"1,234",').replace("8,", '"2,500",'), 0, "may be a dec"),
    "a client's column": table(
        LAST.replace("a,", "client,a,").replace("\n1,", "\nann,1,").replace("\n4", "\nbob,4").replace("\n7", "\nann,7"),
        message="client",
    ),
    "other alphabets": table(LAST.replace("label", "метка").replace("a,", "größe,"), columns={"label_column": "Метка"}),
    "labels in another case": table(LAST.replace("cat", " Cat ")),
    "Latin-1": table(LAST.replace("a,", "größe,"), 0, "iconv", encoding="cp1252"),
    "zip": Case(b"PK\x03\x04\x14\x00\x00\x00" * 9, 0),
    "a wide cell": table(LAST + "x" * 1500 + ",1,1,cat\n", message="a feature that is no number: 1"),
    "a quote that is not closed": table(LAST + '1,2,3,"cat\n1,2,3,dog\n', 0, "not closed"),
    "one class": table(LAST.replace("dog", "cat").replace("bird", "cat")),
    "one row": table(HEAD + "1,2,3,cat\n", 1),
    "empty": table("", 0, "without samples"),
    "header alone": table(HEAD, 0, "without samples"),
    "one column": table("label\ncat\ndog\n", 0, "one column"),
    "another number of features": table(LAST.replace("c,", "c,d,").replace("3,", "3,3,"), 0, "number of features"),
    "class numbers": table(HEAD + NUMBERED),
    "class 0 absent": table(HEAD + NUMBERED.replace(",0\n", ",1\n")),
    "numbers from 1": table(HEAD + ROWS.replace("cat", "1").replace("dog", "2").replace("bird", "3"), 0, "labels.toml"),
    "numbers that are names": table(HEAD + NUMBERED, task=DIGITS),
    "a gap": table(HEAD + NUMBERED.replace(",1\n", ",2\n"), task=DIGITS),
    "float labels": table(HEAD + NUMBERED.replace("0\n", "0.0\n").replace("1\n", "1.0\n").replace("2\n", "2.0\n")),
    "true and false as labels": table(HEAD + ROWS.replace("cat", "True").replace("dog", "False"), 3, "'bird'",
                                      task=("no", "yes", "maybe")),
    "a negative label": table(LAST + "1,1,1,-1\n", message="label '-1' is not of the task: 1"),
    "another label": table(LAST + "1,1,1,cow\n", message="label 'cow' is not of the task: 1"),
    "labels of another task": table(HEAD + WORDS, 0, "is not of the task"),
    "words for a task of numbers": table(LAST, 0, "is not of the task", task=DIGITS),
    "targets": table(LAST.replace("label", "price").replace("cat", "1.5").replace("dog", "-2").replace("bird", "7"),
                     task=("price",), loss="mse"),
    "targets with a decimal comma": table(
        LAST.replace(",", ";").replace("label", "price").replace("cat", "1,5").replace("dog", "-2,5").replace("bird", "7"),
        task=("price",), loss="mse",
    ),
    "no target": table(LAST, 0, "no column 'price'", task=("price",), loss="mse"),
    "texts": table(TEXTS, source="text"),
    "texts without header": table(TEXTS.split("\n", 1)[1], source="text"),
    "texts, label first": table("label,text\ncat,good film\ndog,bad end\nbird,so so\ncat,fine\n", source="text"),
    "texts with commas": table(TEXTS.replace(",", "\t").replace("good", "good, great"), source="text", name="a.tsv"),
    "an empty text": table(TEXTS + '"  ",cat\n', source="text", message="an empty text: 1"),
    "texts and clients": table(
        "groups,text,label\nann,good,cat\nbob,bad,dog\nann,so,bird\nbob,fine,cat\n", source="text"
    ),
    "texts of several columns": table(
        "who,what,label\nann,good,cat\nbob,bad,dog\ncid,so so,bird\n", 0, "which column has the texts", source="text"
    ),
    "arrays": npz(x=X, y=Y),
    "arrays of bytes": npz(x=X.astype(np.uint8), y=Y.astype(np.uint8)),
    "arrays in another case": npz(X=X, Y=Y),
    "features and labels": npz(features=X, labels=Y, message="samples: features, labels: labels"),
    "training alone": npz(X_train=X, Y_train=Y),
    "named y": npz(x=X, y=np.array(["cat", "dog", "bird", "cat"])),
    "y as bytes": npz(x=X, y=np.array([b"cat", b"dog", b"bird", b"cat"])),
    "names of numbers": npz(x=X, y=Y, class_names=np.array(["bird", "dog", "cat"])),
    "y of floats": npz(x=X, y=Y.astype(float)),
    "y (n, 1)": npz(x=X, y=Y[:, None]),
    "one-hot": npz(x=X, y=np.eye(3)[Y]),
    "one-hot of other classes": npz(0, "one-hot of 4 classes", x=X, y=np.eye(4)[Y]),
    "bool": npz(x=X, y=Y > 0),
    "halves": npz(0, "expected one integer", x=X, y=Y + 0.5),
    "from 1": npz(0, "labels.toml", x=X, y=Y + 1),
    "too many labels": npz(0, "expected one", x=X, y=np.arange(5)),
    "not finite": npz(3, "values are not finite: 1", x=np.where(np.arange(12).reshape(4, 3) == 5, np.nan, X), y=Y),
    "objects": npz(0, "Python objects", x=X, y=np.array(["cat", 1, None, "x"], object)),
    "x that is no array": members({"x.npy": b"no array", "y.npy": npy(Y)}, "not a .npz file"),
    "x of an absurd shape": members({"x.npy": header(HUGE), "y.npy": npy(Y)}, "ends too early"),
    "x with a deep header": members({"x.npy": header("(" * 900), "y.npy": npy(Y)}, "not a .npz file"),
    "x twice": members({"x.npy": npy(X), "x": npy(X * 2), "y.npy": npy(Y)}, "two arrays of one name"),
    "a note beside": members({"x.npy": npy(X), "y.npy": npy(Y), "readme.txt": b"hello"}, "", count=4),
    "packed otherwise": members({"x.npy": npy(X), "y.npy": npy(Y)}, "another method", zipfile.ZIP_BZIP2),
    "no x": npz(0, "has no array 'x'", a=X, b=Y),
    "names of numbers, as classes": npz(
        3, "label 'cow' is not of the task: 1", x=X, y=np.array([0, 1, 2, 3]), classes=np.array(["bird", "dog", "cat", "cow"])
    ),
    "a name that ends otherwise": Case(npz(x=X, y=Y).content, 0, "unsupported kind of file (.bin)", name="a.bin", source="npz"),
    "a spreadsheet": Case(b"PK\x03\x04", 0, "a spreadsheet: save it as .csv", name="a.xlsx"),
    "a packed table": Case(b"\x1f\x8b\x08", 0, "a packed file: unpack it", name="a.csv.gz"),
    "a table called .data": table(LAST, 0, "call it .csv if it is a table of text", name="iris.data"),
    "an index of pandas": table(
        "a,b,c,label,__index_level_0__\n" + "".join(f"{row},7\n" for row in ROWS.split()), message="'__index_level_0__' is left out"
    ),
    "no zip": Case(zlib.compress(b"text"), 0, "not a .npz file", name="a.npz", source="npz"),
    "half a zip": Case(npz(x=X, y=Y).content[:200], 0, "not a .npz file", name="a.npz", source="npz"),
}  # fmt: skip


class Words:
    """Token ids of texts, without a tokenizer."""

    def ids(self, texts):
        return np.array([[zlib.crc32(text.encode()) % 900 + 1] * 4 for text in texts], np.int64)


def task_of(case, bundle):
    manifest = bundle.manifest
    shape = InputSpec((4,), dtype="int64", vocabulary=1000) if case.source == "text" else InputSpec((3,))
    loss = {"loss": targets_of("mse", case.task)} if case.loss == "mse" else {}
    manifest = msgspec.structs.replace(manifest, input=shape, labels=case.task, **loss)
    return SimpleNamespace(manifest=manifest, texts=Words() if case.source == "text" else None)


def samples_of(x, y):
    """The samples and their labels, in any order."""
    if not len(x):
        return []
    x = np.asarray(x, np.float32 if x.dtype.kind == "f" else x.dtype).reshape(len(x), -1).astype(np.float32)
    return sorted((sample.tolist(), np.ravel(label).tolist()) for sample, label in zip(x, y, strict=True))


def on_a_device(path, case, task):
    """The samples, and what was left out or why the file was refused; `data check` counts the same."""
    source = SampleSource(path, **case.columns)
    samples = LocalSamples(source, task.manifest, Selection(0.0), task.texts)
    samples.refresh()
    summary = report(samples)
    assert (
        summary.samples
        == len(samples.training)
        == (sum(group.samples for group in summary.classes) or summary.samples)
    )
    skipped = [f"{group.reason}: {group.count}" for group in samples.skipped]
    if not summary.samples:
        with pytest.raises(DataError):  # as `join` begins
            open_samples(source, task.manifest, Selection(0.0), task.texts)
    y = samples.training.y
    y = task.manifest.target.restore(y) if case.loss == "mse" else y
    return (
        samples_of(samples.training.x, y),
        skipped,
        [*map(str, samples.skipped), *samples.forms, *samples.notes],
    )


def in_a_simulation(spec, task):
    data = load(spec, 0, task)
    x, y = np.concatenate([data.train_x, data.test_x]), np.concatenate([data.train_y, data.test_y])
    return samples_of(x, y), data.notes


@pytest.mark.parametrize("name", CASES)
def test_every_reader_makes_the_same_of_a_file(name, tmp_path, bundle):
    case = CASES[name]
    path, task = tmp_path / case.name, task_of(case, bundle)
    path.write_bytes(case.content)
    samples, skipped, texts = on_a_device(path, case, task)
    assert len(samples) == case.count, texts
    spec = {"table": dr.data.table, "text": dr.data.text, "npz": dr.data.npz}[case.source](
        path, **case.columns
    )
    parser = argparse.ArgumentParser()
    partition.add_arguments(parser)
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in case.columns.items()]
    words = ["--data", case.source, "--data-path", str(path), *flags]
    assert (
        partition.request(parser.parse_args(words))[0] == spec
    )  # `partition` and `simulate` read what this says
    if case.count < 2:
        with pytest.raises(DataSetError) as caught:
            load(spec, 0, task)
        error = str(caught.value)
        assert all(line.rsplit(": ", 1)[0] in error for line in skipped), (skipped, error)
        assert case.message in error
        assert case.message in " ".join(texts)
        return
    simulated, notes = in_a_simulation(spec, task)
    assert simulated == samples
    assert [note for note in notes if note.startswith("left out")] == [
        note for note in notes if any(note.startswith(f"left out: {line}") for line in skipped)
    ]
    assert sum(note.startswith("left out") for note in notes) == len(skipped)
    assert case.message in " ".join((*notes, *texts))


def test_the_corpus_is_large_enough():
    assert len(CASES) >= 60
