"""Tokenizers that are read or learnt, and that our ids are those of the `tokenizers` library."""

import os
import random
from pathlib import Path

import msgspec
import pytest

from device_runtime.models.errors import ExportError
from device_runtime.models.text import vocabulary
from device_runtime.models.text.file import decode, encode

library = pytest.importorskip("tokenizers")

DATA = Path(os.environ.get("DEVICE_RUNTIME_DATA", "../shared/data"))
TEXTS = [
    "a stirring , funny and finally transporting re imagining of beauty and the beast",
    "Ça n'était pas drôle ; l'acteur — pourtant célèbre — s'ennuie …",
    "die größte Enttäuschung des Jahres: 2½ Stunden für 12,50 €",
    "Η ταινία ήταν ΥΠΕΡΟΧΗ ΣΑΣ", "фильм был ужасен, ёлки", "映画はとても面白かった。日本語 text",
    "영화가 정말 좋았어요", "الفيلم كان ٣٤ دقيقة", "हिन्दी फ़िल्म अच्छी थी", "👩‍👩‍👧 👍🏽 ok 🇩🇪!!",
    "don't we'll I'M it 's",
    "a\tb\r\n  c   d", "", "   ", "x" * 300, "<mask> [MASK] </s> [PAD] <pad>",
    "e\u0301 \u212b \ufb01 \u00ad\u200b",
    "naïve café", "_snake_case_ C++ a/b #tag @you 1,000.5", "\u0000\u0007\x1c\x85\xa0\u2028end",
]  # fmt: skip


def theirs(file):
    tokenizer = library.Tokenizer.from_str(encode(file).decode())
    tokenizer.encode_special_tokens = True
    return tokenizer


def mixed(rng: random.Random) -> str:
    """Letters, marks and spaces of eleven scripts, and emoji."""
    blocks = [(32, 127), (160, 0x250), (0x370, 0x500), (0x620, 0x64B), (0x905, 0x93A), (0xE01, 0xE2F)]
    blocks += [(0x2010, 0x2028), (0x3041, 0x30FB), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4), (0x1F600, 0x1F640)]
    return "".join(chr(rng.randrange(*rng.choice(blocks[:2] + blocks))) for _ in range(rng.randrange(40)))


@pytest.mark.parametrize("form", vocabulary.SPECIAL)
def test_ids_are_those_of_the_library(form):
    file = vocabulary.learn_tokenizer(TEXTS, form, 600)
    ours, reference = file.tokenizer(), theirs(file)
    rng = random.Random(0)
    for text in [*TEXTS, *(mixed(rng) for _ in range(500))]:
        assert list(ours.ids(text)) == reference.encode(text, add_special_tokens=False).ids, ascii(text)


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "sst2_train.tsv").exists(), reason=f"no sst2_train.tsv in {DATA}")
@pytest.mark.parametrize("form", vocabulary.SPECIAL)
def test_ids_of_every_sentence_of_sst2_are_those_of_the_library(form):
    texts = [
        text for part in ("train", "dev", "test") for text in vocabulary.texts_of(DATA / f"sst2_{part}.tsv")
    ]
    assert len(texts) == 9613
    file = vocabulary.learn_tokenizer(texts[:6920], form, 4000)
    assert file.size == 4000
    ours, reference = file.tokenizer(), theirs(file)
    expected = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
    assert [list(ours.ids(text)) for text in texts] == expected


@pytest.mark.parametrize("form", vocabulary.SPECIAL)
def test_what_is_learnt_does_not_depend_on_chance_or_order(form):
    once = encode(vocabulary.learn_tokenizer(TEXTS, form, 500))
    assert once == encode(vocabulary.learn_tokenizer(TEXTS[::-1], form, 500))
    file = decode(once)
    assert [file.vocabulary[name] for name in vocabulary.SPECIAL[form]] == [0, 1, 2, 3, 4]


def test_published_files_are_read(tmp_path):
    pieces = vocabulary.learn_tokenizer(TEXTS, "word-pieces/1", 300)
    listed = sorted(pieces.vocabulary, key=pieces.vocabulary.__getitem__)
    (tmp_path / "vocab.txt").write_text("\n".join(listed), "utf-8")
    read = vocabulary.read(tmp_path)
    assert list(read.tokenizer().ids(TEXTS[0])) == list(pieces.tokenizer().ids(TEXTS[0]))

    pairs = vocabulary.learn_tokenizer(TEXTS, "byte-pairs/1", 300)
    merges = [f"{first} {second}" for first, second in pairs.model.merges]
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "vocab.json").write_bytes(msgspec.json.encode(pairs.vocabulary))
    (tmp_path / "gpt" / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), "utf-8")
    read = vocabulary.read(tmp_path / "gpt")
    assert list(read.tokenizer().ids(TEXTS[1])) == list(pairs.tokenizer().ids(TEXTS[1]))


def test_older_files_do_not_name_their_parts(tmp_path):
    pairs = vocabulary.learn_tokenizer(TEXTS, "byte-pairs/1", 300)
    table = msgspec.json.decode(encode(pairs))
    del table["model"]["type"]
    (tmp_path / "tokenizer.json").write_bytes(msgspec.json.encode(table))
    assert vocabulary.read(tmp_path).model.merges == pairs.model.merges


def test_what_is_no_tokenizer_is_refused(tmp_path):
    with pytest.raises(ExportError, match="has none of tokenizer.json, vocab.txt, vocab.json"):
        vocabulary.read(tmp_path)
    (tmp_path / "vocab.txt").write_text("film\n##s\n", "utf-8")
    with pytest.raises(
        ExportError, match=r"vocab.txt: the tokenizer is refused: its vocabulary has no '\[UNK\]'"
    ):
        vocabulary.read(tmp_path)
    with pytest.raises(ExportError, match="cannot be read"):
        vocabulary.read(tmp_path / "nowhere.json")


def test_texts_are_lines_or_the_longest_column(tmp_path):
    (tmp_path / "a.txt").write_text("one film\ntwo films\n", "utf-8")
    (tmp_path / "a.tsv").write_text('a "quoted film\t1\nanother\t0\n', "utf-8")
    (tmp_path / "a.csv").write_text('id,text\n1,"a, b"\n2,a long one\n', "utf-8")
    assert vocabulary.texts_of(tmp_path / "a.txt") == ["one film", "two films"]
    assert vocabulary.texts_of(tmp_path / "a.tsv") == ['a "quoted film', "another"]
    assert vocabulary.texts_of(tmp_path / "a.csv") == ["text", "a, b", "a long one"]
    with pytest.raises(ExportError, match="there are no texts"):
        vocabulary.learn_tokenizer([""], "word-pieces/1", 100)
    (tmp_path / "b.csv").write_text("a,b\nc\n", "utf-8")
    with pytest.raises(ExportError, match=r"b.csv cannot be read as texts"):
        vocabulary.texts_of(tmp_path / "b.csv")
