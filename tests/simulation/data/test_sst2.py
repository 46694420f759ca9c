import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from device_runtime.models.bundles.inputs import File, TextInput, Texts
from device_runtime.models.bundles.targets import CROSS_ENTROPY
from device_runtime.models.text.file import Cleaning, WordPieces
from device_runtime.simulation.data import DataSpec, divide, load
from device_runtime.simulation.errors import DataSetError

DATA = Path(os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data"))
PIECES = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "good": 4, "film": 5}


@pytest.fixture
def bundle():
    """A bundle with a tokenizer, as far as a source of text looks at it."""
    spec = TextInput("word-pieces/1", File("tokenizer.json", "", 0), (2,), (3,), 0)
    manifest = SimpleNamespace(labels=("negative", "positive"), target=CROSS_ENTROPY)
    texts = Texts(spec, WordPieces(PIECES, 1, Cleaning(True, True, True)), 6)
    return SimpleNamespace(texts=texts, manifest=manifest)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.tsv").write_text('sentence\tlabel\nGood film\t1\n"bad" film\t0\n')
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta film\n")
    return tmp_path


def test_sentences_become_ids_by_the_bundles_tokenizer(folder, bundle):
    data = load(DataSpec(source="sst2", path=str(folder)), 0, bundle)
    assert data.train_x.tolist() == [[2, 4, 5, 3, 0, 0], [2, 1, 1, 1, 5, 3]]
    assert (data.train_x.dtype, data.labels) == (np.int32, ("negative", "positive"))
    assert data.train_y.tolist() == [1, 0]


def test_a_test_file_without_labels_is_not_evaluated_on(folder, bundle):
    assert load(DataSpec(source="sst2", path=str(folder)), 0, bundle).test_x.tolist() == [[2, 4, 3, 0, 0, 0]]
    (folder / "test.tsv").write_text("film film\t0\n")
    assert load(DataSpec(source="sst2", path=str(folder)), 0, bundle).test_x.tolist() == [[2, 5, 5, 3, 0, 0]]


def test_without_a_tokenizer_words_are_numbered_as_of_any_text(folder):
    data = load(DataSpec(source="sst2", path=str(folder), length=4), 0)
    assert data.vocabulary[2:] == ('"', "film", "bad", "good")
    assert data.train_x.shape == (2, 4)


def test_other_labels_and_missing_files_are_said(folder, monkeypatch):
    (folder / "train.tsv").write_text("fine\t2\nbad\t0\ngood\t1\n")
    with pytest.raises(DataSetError, match="has the labels 0, 1, 2, SST-2 has 0 and 1"):
        load(DataSpec(source="sst2", path=str(folder)), 0)
    (folder / "dev.tsv").write_text("good\tx\n")
    with pytest.raises(DataSetError, match="neither .*test.tsv nor .*dev.tsv has a column of the labels"):
        load(DataSpec(source="sst2", path=str(folder)), 0)
    monkeypatch.delenv("DEVICE_RUNTIME_DATA", raising=False)
    with pytest.raises(DataSetError, match="source sst2 needs a path"):
        load(DataSpec(source="sst2"), 0)


@pytest.mark.skipif(not (DATA / "sst2_train.tsv").exists(), reason=f"no sst2_train.tsv in {DATA}")
def test_the_whole_of_it_is_found_and_divided(monkeypatch):
    monkeypatch.setenv("DEVICE_RUNTIME_DATA", str(DATA))
    spec = DataSpec(source="sst2", partition="dirichlet", alpha=1.0)
    data = load(spec, 0)
    assert (len(data.train_y), len(data.test_y)) == (6920, 1821)
    assert np.bincount(data.train_y).tolist() == [3310, 3610]
    parts = divide(data, spec, 10, 0)
    assert [len(part) for part in parts] == [692] * 10
