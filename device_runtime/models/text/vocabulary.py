"""Makes tokenizers for new bundles: read from published files, or learnt from texts.

The `tokenizers` library, which comes with `transformers`, does the learning; no device needs it.
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.extras import extra_needed
from device_runtime.models.errors import BundleError, ExportError, one_line

from .file import (
    BPE,
    Added,
    BertNormalizer,
    BertPreTokenizer,
    ByteLevel,
    Form,
    TokenizerFile,
    WordPiece,
    decode,
    encode,
)

LIBRARY = "tokenizers"
SPECIAL: dict[Form, tuple[str, ...]] = {
    "word-pieces/1": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "byte-pairs/1": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
"""Special tokens in the order of their ids, as BERT's small models and RoBERTa have them."""
FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""The files looked for in a folder, in this order; merges.txt is in the same folder as vocab.json."""
TABLES = {".tsv": "\t", ".csv": ","}


def read(path: Path) -> TokenizerFile:
    """Reads tokenizer.json, BERT's vocab.txt, or GPT-2's vocab.json with merges.txt, or a folder with one.

    Raises ExportError if it is missing or not supported.
    """
    file = next((path / name for name in FILES if (path / name).is_file()), None) if path.is_dir() else path
    if file is None:
        raise ExportError(f"{path} has none of {', '.join(FILES)}")
    try:
        definition = _read(file)
        definition.tokenizer()
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, msgspec.MsgspecError, ValueError, BundleError) as error:
        raise ExportError(f"{file}: {one_line(error)}") from error
    return definition


def _read(file: Path) -> TokenizerFile:
    if file.suffix == ".txt":
        pieces = file.read_text("utf-8").removesuffix("\n").split("\n")  # a piece may be another line break
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        cased = any(piece != piece.lower() for piece in pieces if piece not in SPECIAL["word-pieces/1"])
        return TokenizerFile(WordPiece(vocabulary), BertNormalizer(lowercase=not cased), BertPreTokenizer())
    if file.name == "vocab.json":
        vocabulary = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
        lines = (file.parent / "merges.txt").read_text("utf-8").splitlines()
        merges: list[str | tuple[str, str]] = [li for li in lines if li and not li.startswith("#version")]
        return TokenizerFile(BPE(vocabulary, merges), None, ByteLevel())
    data = file.read_bytes()
    try:
        return decode(data)
    except BundleError:  # older files lack the types of their parts, which the library adds
        return decode(_library().Tokenizer.from_buffer(data).to_str().encode())


def learn_tokenizer(texts: Iterable[str], form: Form, size: int) -> TokenizerFile:
    """Learns a tokenizer of at most `size` ids; the order of the texts does not matter.

    Raises ExportError if tokenizers is not installed, or there are no texts.
    """
    texts = sorted(texts)
    if not any(texts):
        raise ExportError("there are no texts to learn a tokenizer from")
    tokenizer = _word_pieces(texts, size) if form == "word-pieces/1" else _byte_pairs(texts, size)
    special = tuple(Added(number, name) for number, name in enumerate(SPECIAL[form]))
    return msgspec.structs.replace(decode(tokenizer.to_str().encode()), added_tokens=special)


def _word_pieces(texts: Sequence[str], size: int) -> Any:
    """Learns word pieces.

    The library breaks ties by ids, and gives random ids to the characters that continue a word. So they get
    their ids beforehand.
    """
    library = _library()
    model = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))  # noqa: S106
    model.normalizer = library.normalizers.BertNormalizer()
    model.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    alphabet = sorted({c for text in texts for c in model.normalizer.normalize_str(text) if not c.isspace()})
    first = [*SPECIAL["word-pieces/1"], *(f"##{c}" for c in alphabet)]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=first, show_progress=False, limit_alphabet=len(alphabet)
    )
    model.train_from_iterator(texts, trainer)
    return model


def _byte_pairs(texts: Sequence[str], size: int) -> Any:
    library = _library()
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL["byte-pairs/1"]), show_progress=False,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    model.train_from_iterator(texts, trainer)
    return model


def texts_of(file: Path) -> list[str]:
    """The texts of a file: the lines of a .txt, or the column of a .tsv or .csv with most characters.

    Raises ExportError.
    """
    try:
        if file.suffix not in TABLES:
            return file.read_text("utf-8-sig").splitlines()
        with file.open(encoding="utf-8-sig", newline="") as stream:
            columns = list(zip(*_rows(stream, TABLES[file.suffix]), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ExportError(f"{file} cannot be read as texts: {one_line(error)}") from error
    return list(max(columns, key=lambda column: sum(map(len, column)), default=()))


def _rows(stream: Iterable[str], separator: str) -> Iterator[list[str]]:
    """The rows that are not empty; in a .tsv, quotes are ordinary characters."""
    if separator == "\t":
        rows = csv.reader(stream, delimiter=separator, quoting=csv.QUOTE_NONE)
    else:
        rows = csv.reader(stream, delimiter=separator)
    return (row for row in rows if row)


def _library() -> Any:
    try:
        return importlib.import_module(LIBRARY)
    except ImportError as error:
        raise ExportError(extra_needed("a tokenizer of texts", "networks", LIBRARY)) from error


__all__ = ["SPECIAL", "encode", "learn_tokenizer", "read", "texts_of"]
