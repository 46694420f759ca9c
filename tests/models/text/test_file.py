import msgspec
import pytest

from device_runtime.models.errors import BundleError
from device_runtime.models.text.file import SYMBOLS, decode, encode

WORDS = {
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "film": 1}},
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "added_tokens": [{"id": 0, "content": "[UNK]", "special": True}, {"id": 7, "content": "[MASK]"}],
    "post_processor": {"type": "TemplateProcessing"},
}
BYTES = {
    "model": {"type": "BPE", "vocab": {s: n for n, s in enumerate((*SYMBOLS, "ab"))}, "merges": ["a b"]},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
}


def changed(table, part, **fields):
    return {**table, part: {**(table.get(part) or {}), **fields}}


def read(table):
    return decode(msgspec.json.encode(table))


def test_both_forms_are_read_and_are_the_same_when_written():
    for table, form, size in ((WORDS, "word-pieces/1", 8), (BYTES, "byte-pairs/1", 257)):
        file = read(table)
        assert (file.form, file.size) == (form, size)
        assert decode(encode(file)) == file
    assert list(read(WORDS).tokenizer().ids("Film x")) == [1, 0]
    assert list(read(BYTES).tokenizer().ids("abb")) == [256, SYMBOLS.index("b")]


def test_merges_may_be_pairs_or_words():
    pairs = changed(BYTES, "model", merges=[["a", "b"]])
    assert list(read(pairs).tokenizer().ids("ab")) == list(read(BYTES).tokenizer().ids("ab"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "is not read .*: expected word pieces as BERT's"),
        (changed(WORDS, "model", type="Unigram"), "Invalid value 'Unigram'"),
        (changed(WORDS, "pre_tokenizer", type="Metaspace"), "Invalid value 'Metaspace'"),
        (changed(WORDS, "normalizer", type="NFKC"), "Invalid value 'NFKC'"),
        (changed(WORDS, "normalizer", clean_text=False), "clean_text"),
        (changed(BYTES, "model", dropout=0.1), "dropout"),
        (changed(BYTES, "model", byte_fallback=True), "byte_fallback"),
        (changed(BYTES, "pre_tokenizer", use_regex=False), "use_regex"),
    ],
)
def test_another_kind_of_tokenizer_is_not_read(table, message):
    with pytest.raises(BundleError, match=message) as caught:
        read(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({**WORDS, "normalizer": None}, "word pieces need BertNormalizer"),
        (changed(WORDS, "model", unk_token="<unk>"), "has no '<unk>'"),
        (changed(WORDS, "model", vocab={"[UNK]": 0, "film": -1}), "not all from 0"),
        ({**WORDS, "added_tokens": [{"id": 1, "content": "film", "special": False}]}, "'film' was added"),
        (changed(WORDS, "model", max_input_chars_per_word=5000), "may have 5000 characters"),
        ({**BYTES, "normalizer": WORDS["normalizer"]}, "need the pre-tokenizer ByteLevel, and no normalizer"),
        ({**BYTES, "pre_tokenizer": None}, "need the pre-tokenizer ByteLevel"),
        (changed(BYTES, "model", vocab={"a": 0}), "lacks 255 of 256 bytes"),
        (changed(BYTES, "model", merges=["a c"]), "merges 'a' and 'c', and its vocabulary has no 'ac'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(table, message):
    with pytest.raises(BundleError, match=message):
        read(table).tokenizer()
