import tempfile
import tracemalloc

import numpy as np
import pytest

from device_runtime.simulation.data import DataSpec, load, text
from device_runtime.simulation.data.text import tokens
from device_runtime.simulation.errors import DataSetError


def spec(path, **fields):
    return DataSpec(source="text", path=str(path), **{"length": 5, **fields})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.tsv").write_text('Good , good film\t1\nbad film\t0\na "bad" end\t0\n')
    (tmp_path / "test.tsv").write_text("good unheard words and many more of them\t1\n")
    return tmp_path


def test_ids_follow_frequency_then_the_alphabet(folder):
    data = load(spec(folder), 0)
    # twice: bad, film, good, "; once: the comma, a, end
    assert data.vocabulary == ("<padding>", "<unknown>", '"', "bad", "film", "good", ",", "a", "end")
    assert data.train_x.tolist() == [[5, 6, 5, 4, 0], [3, 4, 0, 0, 0], [7, 2, 3, 2, 8]]
    assert (data.train_y.tolist(), data.labels) == ([1, 0, 0], ("0", "1"))
    assert data.train_x.dtype == np.int32


def test_words_of_the_evaluation_alone_are_unknown_and_long_texts_are_cut(folder):
    assert load(spec(folder), 0).test_x.tolist() == [[5, 1, 1, 1, 1]]


def test_the_vocabulary_has_no_more_ids_than_asked_for(folder):
    data = load(spec(folder, vocabulary=4), 0)
    assert data.vocabulary == ("<padding>", "<unknown>", '"', "bad")
    assert data.train_x.max() == 3


def test_apostrophes_stay_within_words():
    assert tokens("Don't stop... it's 9 o'clock!") == ["don't", "stop", *"...", "it's", "9", "o'clock", "!"]


def test_columns_are_found_by_the_header(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text('id,stars,review\n7,5,"so, so good"\n8,1,never again\n9,5,good\n')
    data = load(spec(file, text_column="review", label_column="stars", test_share=0.3), 0)
    assert data.labels == ("1", "5")
    assert (len(data.train_y), len(data.test_y)) == (2, 1)


def test_columns_are_found_by_number(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text("pos,fine film\nneg,dull\npos,fine\nneg,no\n")
    data = load(spec(file, text_column="1", label_column="0", test_path=str(file)), 0)
    assert data.labels == ("neg", "pos")
    assert data.test_y.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("title", ["label", "Sentiment", "anything else"])
def test_a_header_is_known_by_its_title_or_by_numbers_below_it(folder, title):
    (folder / "train.tsv").write_text(f"sentence\t{title}\ngood\t1\nbad\t0\nfine\t1\nworse\t0\n")
    data = load(spec(folder), 0)
    assert data.labels == ("0", "1")
    assert len(data.train_y) == 4


def test_numbers_are_sorted_as_numbers(folder):
    (folder / "train.tsv").write_text("".join(f"word{n}\t{n % 11}\n" for n in range(22)))
    (folder / "test.tsv").write_text("word\t10\nword\t10\nword\t9\nword\t9\n")
    data = load(spec(folder), 0)
    assert data.labels[9:] == ("9", "10")
    assert data.test_y.tolist() == [10, 10, 9, 9]


def test_the_vocabulary_of_a_split_file_is_that_of_its_training_part(tmp_path):
    file = tmp_path / "d.tsv"
    file.write_text("".join(f"word{n}\t{n % 2}\n" for n in range(10)))
    data = load(spec(file, test_share=0.3), 0)
    assert len(data.vocabulary) == 2 + 7
    assert data.train_x[:, 0].min() >= 2
    assert (data.test_x[:, 0] == 1).all()


def test_words_without_a_vector_are_unknown(folder):
    (folder / "glove.txt").write_text("film 1 2\ngood 3 4\n")
    data = load(spec(folder, vectors=str(folder / "glove.txt")), 0)
    assert data.vocabulary == ("<padding>", "<unknown>", "film", "good")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("one column\nonly\n", "one column, expected several"),
        ("", "a file without samples"),
    ],
)
def test_damage_is_said(folder, content, message):
    (folder / "train.tsv").write_text(content)
    with pytest.raises(DataSetError, match=message):
        load(spec(folder), 0)


def test_strange_labels_columns_and_files_are_said(folder):
    (folder / "test.tsv").write_text("good\t7\nbad\t7\n")
    with pytest.raises(DataSetError, match=r"test\.tsv has the label '7', training has 0, 1"):
        load(spec(folder), 0)
    with pytest.raises(DataSetError, match="no column 'nope' for the texts: there are"):
        load(spec(folder, text_column="nope"), 0)
    (folder / "other_train.csv").write_text("x,1\n")
    with pytest.raises(DataSetError, match=r"other_train\.csv, train\.tsv of .*, expected one"):
        load(spec(folder), 0)
    (folder / "train.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataSetError, match="not a table of UTF-8 text"):
        load(spec(folder / "train.tsv"), 0)


@pytest.mark.slow
def test_the_real_reviews_have_their_published_sizes(shared):
    train, test = shared("sst2_train.tsv"), shared("sst2_test.tsv")
    data = load(DataSpec(source="text", path=train, test_path=test), 0)
    assert (data.train_x.shape, data.test_x.shape) == ((6920, 32), (1821, 32))
    assert len(data.vocabulary) == 10_000
    assert data.vocabulary[2] == "the"
    assert (data.test_x == 1).mean() < 0.1


def test_short_texts_take_no_more_than_three_times_their_size(tmp_path, folder, monkeypatch):
    load(spec(folder), 0)  # imports
    monkeypatch.setattr(text, "IN_MEMORY_BYTES", 1 << 14)
    peaks = []
    row = "a good film to be seen,1\na bad film not to see!,0\n"
    for rows in (4_000, 8_000):
        (tmp_path / "d.csv").write_text("sentence,label\n" + "x" * 1500 + ",1\n" + row * (rows // 2))
        tracemalloc.start()
        data = load(spec(tmp_path / "d.csv", length=32), 0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(data.train_x) + len(data.test_x) == rows + 1
    assert peaks[1] - peaks[0] < 3 * 2_000 * len(row)


@pytest.mark.parametrize("full", [False, True])
def test_ids_of_many_texts_are_the_same_in_a_file_or_where_the_disk_is_full(folder, monkeypatch, full):
    few = load(spec(folder), 0)
    monkeypatch.setattr(text, "IN_MEMORY_BYTES", 0)
    if full:

        def refuse():
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    many = load(spec(folder), 0)
    assert isinstance(many.train_x, np.memmap) is not full
    assert (many.train_x.tolist(), many.test_x.tolist()) == (few.train_x.tolist(), few.test_x.tolist())
