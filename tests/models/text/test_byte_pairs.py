import pytest

from device_runtime.models.text.file import SYMBOLS, BytePairs, words

MERGES = [("i", "l"), ("f", "il"), ("Ġ", "fil"), ("Ġfil", "m"), ("Ã", "¯")]
TOKENS = [*SYMBOLS, *(a + b for a, b in MERGES)]
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


def tokens(text, lead=False):
    encoder = BytePairs(VOCABULARY, {pair: number for number, pair in enumerate(MERGES)}, lead)
    return [TOKENS[number] for number in encoder.ids(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("It's a film, isn't it", ["It", "'s", " a", " film", ",", " isn", "'t", " it"]),
        ("I'M", ["I", "'", "M"]),
        ("2 films4you", ["2", " films", "4", "you"]),
        ("a  b\n\nc ", ["a", " ", " b", "\n", "\n", "c", " "]),
        ("naïve caf\u00e9", ["naïve", " café"]),
        ("日本 ٣٤!?", ["日本", " ٣٤", "!?"]),
        ("ok 👩‍👧", ["ok", " 👩‍👧"]),
        ("a\u00a0b", ["a", "\u00a0", "b"]),
    ],
)
def test_text_is_divided_as_by_gpt_2(text, expected):
    assert list(words(text)) == expected


def test_pairs_are_merged_in_the_order_in_which_they_were_learnt():
    assert tokens("film film") == ["fil", "m", "Ġfilm"]
    assert tokens("fiil") == ["f", "i", "il"]


def test_every_text_is_bytes_and_nothing_is_unknown():
    assert tokens("ï") == ["Ã¯"]
    assert tokens("👍") == ["ð", "Ł", "ĳ", "į"]
    assert tokens("\udc80") == ["?"]  # no Unicode
    assert tokens("<s>") == ["<", "s", ">"]


def test_a_text_may_be_given_the_space_before_it():
    assert tokens("film", lead=True) == tokens(" film") == ["Ġfilm"]
    assert tokens("", lead=True) == []


def test_a_word_without_end_is_taken_in_parts_of_a_kibibyte():
    assert tokens("fil" * 1000)[:343] == [*["fil"] * 341, "f", "il"]  # 341 * 3 + 1 characters, then the rest


def test_there_is_a_symbol_for_each_byte():
    assert len(set(SYMBOLS)) == 256
    assert all(symbol.isprintable() and symbol != " " for symbol in SYMBOLS)
    assert SYMBOLS[ord("A")] == "A"
    assert SYMBOLS[ord(" ")] == "Ġ"
