"""Golden cases, worked out by hand; that they are the library's is for test_library.py."""

import pytest

from device_runtime.models.text.file import Cleaning, WordPieces

PIECES = [
    "[PAD]",
    "[UNK]",
    "un",
    "##aff",
    "##able",
    "film",
    "##s",
    "cafe",
    "naive",
    ".",
    "日",
    "'",
    "s",
    "σας",
]
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}
LOWER = Cleaning(lowercase=True, strip_accents=True, ideographs_apart=True)


def pieces(text, cleaning=LOWER, **settings):
    encoder = WordPieces(VOCABULARY, 1, cleaning, **settings)
    return [PIECES[number] for number in encoder.ids(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n ", []),
        ("unaffable", ["un", "##aff", "##able"]),
        ("Films.", ["film", "##s", "."]),
        ("un film", ["un", "film"]),
        ("film's", ["film", "'", "s"]),
        ("Café naïve", ["cafe", "naive"]),
        ("cafe\u0301", ["cafe"]),  # accents apart, as a Mac has them
        ("日日film", ["日", "日", "film"]),
        ("ΣΑΣ", ["[UNK]"]),  # each letter alone: no final sigma, so that this is no word of the vocabulary
        ("fi\u0000l\u200dm", ["film"]),  # what is no character goes
        ("un\u00a0film\u3000un", ["un", "film", "un"]),
        ("🙂 film", ["[UNK]", "film"]),
        ("unx", ["[UNK]"]),  # a word is known as a whole or not at all
        ("[PAD]", ["[UNK]"] * 3),  # the name of a special token is text
    ],
)
def test_text_becomes_pieces(text, expected):
    assert pieces(text) == expected


def test_a_word_that_is_too_long_is_unknown():
    assert pieces("un" * 50) == ["[UNK]"]
    assert pieces("film", longest=3) == ["[UNK]"]


def test_case_and_accents_stay_where_they_are_to():
    plain = Cleaning(lowercase=False, strip_accents=False, ideographs_apart=False)
    assert pieces("Film film", plain) == ["[UNK]", "film"]
    assert pieces("café", plain) == ["[UNK]"]
    assert pieces("日日", plain) == ["[UNK]"]


def test_a_piece_of_a_published_list_may_be_a_line_break_of_unicode(tmp_path):
    vocabulary = pytest.importorskip("device_runtime.models.text.vocabulary")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "\u2028", "b"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    assert vocabulary.read(tmp_path / "vocab.txt").model.vocab == {p: i for i, p in enumerate(pieces)}
