"""Texts as people have them become token ids: files in class folders, tables, a database."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from device_runtime.cli.options import add_data
from device_runtime.models.available_engines.available import EngineSettings, open_model
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.data import SampleSource, load, open_samples, raw
from device_runtime.models.data.cells import text_column
from device_runtime.models.data.local_data import is_held_out
from device_runtime.models.data.local_samples import LocalSamples, Selection
from device_runtime.models.data.report import lines, report
from device_runtime.models.data.units import Refused
from device_runtime.models.errors import DataError

GOOD, BAD = "a great film , it was warm .", "a terrible plot , it was dull ."


@pytest.fixture
def ids(text_bundle):
    """The ids of texts, as the bundle makes them."""
    return lambda *texts: text_bundle.texts.ids(texts).tolist()


@pytest.fixture
def loaded(text_bundle):
    """The samples of a place, in the order in which they are there."""
    return lambda place: load(place, text_bundle.manifest, text_bundle.texts)


def skipped(place, bundle):
    samples = LocalSamples(SampleSource.of(place), bundle.manifest, texts=bundle.texts)
    samples.refresh()
    return {group.reason: group.examples for group in samples.skipped}


def test_a_file_in_a_class_folder_is_one_text(tmp_path, loaded, ids):
    for label, name, text in (("Positive", "a.txt", GOOD), ("negative", "b.txt", f"\ufeff{BAD}\n")):
        (tmp_path / label).mkdir()
        (tmp_path / label / name).write_text(text, "utf-8")
    samples = loaded(tmp_path)
    assert (samples.x.tolist(), samples.y.tolist()) == (ids(GOOD, BAD), [1, 0])
    assert (samples.x.dtype, samples.y.dtype) == (np.uint16, np.int32)  # as they are stored


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.tsv", f"{GOOD}\t1\n{BAD}\t0\n", {}),
        ("a.tsv", f"sentence\tlabel\n{GOOD}\t1\n{BAD}\t0\n", {}),
        ("a.tsv", f'"{GOOD}"\t"positive"\n{BAD}\tnegative\n', {}),
        ("a.csv", f'label,review\npositive,"{GOOD}"\nnegative,"{BAD}"\n', {}),
        ("a.csv", f'id,text,sentiment\n7,"{GOOD}",positive\n8,"{BAD}",negative\n', {}),
        ("a.csv", f'said,by,what\n"{GOOD}",ann,1\n"{BAD}",bob,0\n', {"text_column": "said"}),
        ("a.csv", f'ann,"{GOOD}",1\nbob,"{BAD}",0\n', {"text_column": "1", "label_column": "2"}),
    ],
)
def test_a_row_of_a_table_is_a_text_and_its_label(tmp_path, loaded, ids, name, content, columns):
    (tmp_path / name).write_text(content, "utf-8")
    samples = loaded(SampleSource(tmp_path / name, **columns))
    assert (samples.x.tolist(), samples.y.tolist()) == (ids(GOOD, BAD), [1, 0])


def test_a_quote_in_a_tsv_is_a_character_and_joins_no_lines(tmp_path, loaded, ids):
    (tmp_path / "a.tsv").write_text(f'" a "great" film\t1\n"{BAD}\t0\n')
    assert loaded(tmp_path).x.tolist() == ids('" a "great" film', f'"{BAD}')
    assert len(list(raw(tmp_path))) == 2


def test_what_a_query_gives_is_texts(tmp_path, loaded, ids, text_bundle):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database, database:
        database.execute("CREATE TABLE said (id INTEGER, text TEXT, mood TEXT)")
        rows = [(1, GOOD, "positive"), (2, BAD.encode(), "negative"), (3, None, "negative")]
        database.executemany("INSERT INTO said VALUES (?, ?, ?)", rows)
    for query in ("SELECT text, mood FROM said ORDER BY id", "SELECT * FROM said ORDER BY id"):
        place = f"sqlite:{tmp_path}/a.db?{query}"
        samples = loaded(place)
        assert (samples.x.tolist(), samples.y.tolist()) == (ids(GOOD, BAD), [1, 0])
        assert skipped(place, text_bundle) == {"an empty text": ("row 3",)}


def test_what_is_no_text_is_left_out_and_said(tmp_path, text_bundle):
    (tmp_path / "positive").mkdir()
    (tmp_path / "positive" / "good.txt").write_text(GOOD)
    (tmp_path / "positive" / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "positive" / "empty.txt").write_bytes(b"")
    (tmp_path / "positive" / "spaces.txt").write_bytes(b" \n ")
    (tmp_path / "positive" / "x.pgm").write_bytes(b"P5 1 1 255 \x00")
    reasons = skipped(tmp_path, text_bundle)
    assert reasons["not a text in UTF-8"] == ("positive/latin.txt: unexpected end of data at byte 3",)
    assert reasons["an empty file"] == ("positive/empty.txt",)
    assert reasons["an empty text"] == ("positive/spaces.txt",)
    assert any("no picture" in reason for reason in reasons)


def test_which_column_has_the_texts_is_asked_where_it_is_not_clear(tmp_path, text_bundle):
    (tmp_path / "a.csv").write_text("one,two,label\nx,y,1\n")
    with pytest.raises(DataError, match=r"which column has the texts\? say it by --text-column: .*one, two"):
        open_samples(tmp_path, text_bundle.manifest, texts=text_bundle.texts)
    with pytest.raises(Refused, match="no column 'three' for the texts"):
        text_column(["one", "two", "label"], (), (0, 1), "three")
    with pytest.raises(Refused, match=r"0, 1"):
        text_column(None, [["a", "b", "c"]], (0, 1), "")
    assert text_column(None, [["a", "b", "c"]], (0, 1), "1") == 1


def test_a_text_is_no_picture_and_no_list_of_ids(tmp_path, bundle, text_bundle):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "a.txt").write_text(GOOD)
    with pytest.raises(DataError, match=r"the task's input is no text: .*it is \(1, 8, 8\)"):
        load(tmp_path, bundle.manifest)
    (tmp_path / "7").rename(tmp_path / "positive")
    with pytest.raises(DataError, match="it is token ids, and its bundle has no tokenizer"):
        load(tmp_path, text_bundle.manifest)


def test_ids_that_were_made_elsewhere_are_still_taken(tmp_path, text_bundle, loaded, ids):
    np.savez(tmp_path / "a.npz", x=np.array(ids(GOOD)), y=np.array([1]))
    assert loaded(tmp_path).x.tolist() == ids(GOOD)
    np.savez(tmp_path / "a.npz", x=np.array(ids(GOOD)) + 1000, y=np.array([1]))
    with pytest.raises(DataError, match=r"token id \d+, expected 0 to 329"):
        loaded(tmp_path)


def test_the_report_says_how_texts_are_read_and_how_many_fill_the_input(tmp_path, text_bundle):
    (tmp_path / "a.tsv").write_text(f"{GOOD}\t1\n{'film ' * 40}\t0\n")
    summary = report(open_samples(tmp_path, text_bundle.manifest, texts=text_bundle.texts))
    assert summary.filled == 1
    text = "\n".join(lines(summary))
    assert "the task takes texts as 24 tokens (byte-pairs/1), read as '{text} It was{mask} .'" in text
    assert "; 1 fill them, and lose what is beyond" in text
    assert summary.stored == {"text in a table, labels in column 1 (it holds labels of the task)": 2}


def test_the_columns_can_be_said_on_the_command_line():
    import argparse

    parser = argparse.ArgumentParser()
    add_data(parser)
    assert parser.parse_args(["--text-column", "said"]).text_column == "said"


def test_ids_are_kept_narrow_and_held_out_and_judged_as_their_long_form(tmp_path, text_bundle):
    texts = [f"film {number} , it was {'warm' if number % 2 else 'dull'} ." for number in range(200)]
    (tmp_path / "a.tsv").write_text("".join(f"{text}\t{number % 2}\n" for number, text in enumerate(texts)))
    samples = open_samples(tmp_path, text_bundle.manifest, Selection(0.3, 5), text_bundle.texts)
    ids = text_bundle.texts.ids(texts)
    holdout = is_held_out(ids, 0.3, 5)
    assert ids.dtype == np.int64 and 40 < holdout.sum() < 80
    assert samples.holdout.x.tolist() == ids[holdout].tolist()
    assert samples.training.x.tolist() == ids[~holdout].tolist()
    assert samples.memory_bytes == 200 * (24 * 2 + 4)


@pytest.mark.parametrize("engine", ["onnxruntime", "torch"])
def test_graphs_get_the_same_of_narrow_ids_as_of_long_ones(text_bundle, engine):
    ids, y = text_bundle.texts.ids([GOOD, BAD, GOOD, f"{BAD} {GOOD}"]), np.array([1, 0, 1, 0])
    results = []
    for x, targets in ((ids, y), (ids.astype(np.uint16), y.astype(np.int32))):
        model = open_model(text_bundle, EngineSettings(engine=engine))
        trainer, probe = model.trainer(), model.probe()
        losses = trainer.loss_and_grads(x, targets), probe.loss(x, targets)
        results.append((losses, trainer.grads.vector.tobytes(), model.logits(x).tobytes()))
    assert results[0] == results[1]


def test_a_large_vocabulary_takes_wider_ids():
    for vocabulary, dtype in ((256, np.uint8), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)):
        assert InputSpec((4,), dtype="int64", vocabulary=vocabulary).stored_dtype == dtype
