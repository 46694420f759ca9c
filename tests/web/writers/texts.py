"""Texts made into token ids by the tokenizers of bundles."""

from typing import Any

from device_runtime.models.bundles.inputs import File, TextInput, Texts
from device_runtime.models.text import file as tokenizers
from device_runtime.models.text.file import SYMBOLS, TokenizerFile

MERGES = ["i l", "f il", "Ġ fil", "Ġfil m", "Ã ¯", "t h", "th e", "Ġ the", "e r", "Ġ t", "Ġ Ġ", "! !", "1 9"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789!?.,'#-äß中ςσ"
PIECES = ["film", "un", "##aff", "##able", "the", "##s", "cafe", "##ing", "naive", "İ", "it"]
LENGTH = 24
TEXTS = (
    "It's a film, isn't it!!",
    "  The Unaffable FILMS 1984 \n\t",
    "naïve CAFÉ ﬁne İstanbul ΟΔΟΣ",
    "日本 中文字 ٣٤!? ½ ²",
    "ok 👩‍👧 👍🏽 \u200b\u00ad\ufeff",
    "a\u00a0b\u3000c\x85d\x1ce\u2028f",
    "don't I'M we'll THEY'VE x'd",
    "x" * 150,
    "fil" * 500,
    "snake_case #tag a--b (c) [d] «e» “f” £5 €6 5% a+b=c",
    "  two  spaces   three ",
    "\ufffd\x00\x07 bell e\u0301 \u1e9b\u0323 \u212b",
    "the unaffablefilming films",
)


def vectors() -> dict[str, Any]:
    pairs = {
        symbol: i for i, symbol in enumerate([*SYMBOLS, *(merge.replace(" ", "") for merge in MERGES)], 4)
    }
    words = {
        piece: i
        for i, piece in enumerate(
            dict.fromkeys(["[PAD]", "[UNK]", *LETTERS, *("##" + c for c in LETTERS), *PIECES])
        )
    }
    split = tokenizers.BertPreTokenizer()
    return {
        "byte_pairs": [
            _case(TokenizerFile(tokenizers.BPE(pairs, MERGES), None, tokenizers.ByteLevel(lead)))
            for lead in (False, True)
        ],
        "word_pieces": [
            _case(TokenizerFile(tokenizers.WordPiece(words), normalizer, split))
            for normalizer in (
                tokenizers.BertNormalizer(),
                tokenizers.BertNormalizer(handle_chinese_chars=False, strip_accents=False, lowercase=False),
                tokenizers.BertNormalizer(strip_accents=False),
            )
        ],
    }


def _case(file: TokenizerFile) -> dict[str, Any]:
    """A tokenizer, and for each text its ids without fixed ones, and the input of the model."""
    spec = TextInput(file.form, File("tokenizer.json", "", 0), (2, 3), (3,), 1)
    tokenizer = file.tokenizer()
    texts = Texts(spec, tokenizer, LENGTH)
    return {
        "tokenizer": tokenizers.encode(file).decode(),
        "text": {"before": spec.before, "after": spec.after, "padding": spec.padding},
        "length": LENGTH,
        "texts": [
            {"text": text, "ids": list(tokenizer.ids(text)), "x": texts.ids([text])[0].tolist()}
            for text in TEXTS
        ],
    }
