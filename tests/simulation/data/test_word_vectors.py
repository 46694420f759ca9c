import numpy as np
import pytest

from device_runtime.simulation.data.text import matrix, words
from device_runtime.simulation.errors import DataSetError

VOCABULARY = ("<padding>", "<unknown>", "cat", "dog", "emu")


@pytest.fixture
def glove(tmp_path):
    file = tmp_path / "glove.txt"
    file.write_text("the 9 9 9\ncat 1 2 3\nemu 3 4 -5.5\n")
    return file


def test_rows_stand_at_the_token_ids(glove):
    table = matrix(VOCABULARY, glove)
    assert table.dtype == np.float32
    mean = [2, 3, -1.25]  # of cat and emu, for what the file does not have
    assert table.tolist() == [[0, 0, 0], mean, [1, 2, 3], mean, [3, 4, -5.5]]


def test_words_of_the_file_are_known(glove):
    assert words(glove) == {"the", "cat", "emu"}


def test_a_first_line_of_counts_is_no_word(glove):
    glove.write_text("2 3\ncat 1 2 3\nemu 3 4 5\n")
    assert words(glove) == {"cat", "emu"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat 1 2 3\ndog 1 2\n", "vectors of 2 and 3 values"),
        ("cat 1 x 3\n", "the vector of 'cat' has a value that is not a number"),
        ("the 1 2 3\n", "has none of the 5 words"),
    ],
)
def test_damage_is_said(glove, content, message):
    glove.write_text(content)
    with pytest.raises(DataSetError, match=message):
        matrix(VOCABULARY, glove)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataSetError, match=r"glove\.6B\.txt cannot be read"):
        words(tmp_path / "glove.6B.txt")
