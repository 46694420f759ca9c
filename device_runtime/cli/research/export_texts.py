"""Options of `device-runtime export` for networks that read texts: a tokenizer, a prompt, words."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.models.bundles.inputs import File, TextInput
from device_runtime.models.bundles.manifest import Setting
from device_runtime.models.errors import ExportError, one_line
from device_runtime.models.networks.text_settings import FRAMING, Framing, sizes_of
from device_runtime.models.text import vocabulary
from device_runtime.models.text.file import MOST_IDS, Form, TokenizerFile, encode

TEXT, MASK = "{text}", "{mask}"
NAMES: Mapping[Form, tuple[str, str, str, str]] = {
    "word-pieces/1": ("[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    "byte-pairs/1": ("<s>", "</s>", "<pad>", "<mask>"),
}
"""Format of a tokenizer -> its tokens for start, end, padding and mask."""
TOKENS, LEAST_TOKENS = 8000, 270
"""Default and least number of ids of a learnt tokenizer: it needs all bytes and the special tokens."""


@dataclass(frozen=True)
class TextReading:
    """A bundle's settings for texts, its tokenizer, and the settings of the network that follow."""

    text: TextInput
    tokenizer: bytes
    vocabulary: int
    settings: dict[str, Setting]


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for texts; with --tokenizer or --tokenizer-from the input is text."""
    add = parser.add_argument
    add(
        "--tokenizer", type=Path, metavar="PATH",
        help="Read tokenizer.json, vocab.txt, or a folder with one of them or vocab.json and merges.txt.",
    )  # fmt: skip
    add(
        "--tokenizer-from",
        type=Path,
        metavar="FILE",
        help="Learn a tokenizer from the texts of a .tsv, .csv or .txt.",
    )
    add(
        "--tokens",
        type=int,
        metavar="N",
        help=f"Give a tokenizer that is learnt this many ids (default: {TOKENS}).",
    )
    add("--prompt", metavar="TEMPLATE", help='Put this around a text, such as "{text} It was{mask} .".')
    add(
        "--words", metavar="A,B,..",
        help='Answer with the model\'s own words, one for each label, such as " terrible, great".',
    )  # fmt: skip


def folder_settings(args: argparse.Namespace) -> dict[str, Setting]:
    """Sizes of the network that config.json gives, where --weights is a folder. Raises ExportError."""
    if args.weights is None or not args.weights.is_dir():
        return {}
    file = args.weights / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ExportError(f"{file} does not say the sizes of the network: {one_line(error)}") from error
    return {**sizes_of(args.factory, config)}


def reading(args: argparse.Namespace, network_settings: Mapping[str, Any]) -> TextReading | None:
    """The settings for texts by the options; None if the input is not text.

    `network_settings`: settings of the network.

    Raises ExportError.
    """
    file = _file(args)
    if file is None:
        if stray := [name for name in ("prompt", "words", "tokens") if getattr(args, name) is not None]:
            raise ExportError(f"--{stray[0]} is for texts: give --tokenizer or --tokenizer-from")
        return None
    framing = FRAMING.get(args.factory)
    if framing is None:
        raise ExportError(f"{args.factory} takes no texts; {', '.join(FRAMING)} do")
    size = network_settings.get("vocabulary", args.vocabulary or file.size)
    if not isinstance(size, int):
        raise ExportError(f"vocabulary is {size!r}, expected a number of token ids")
    if args.vocabulary not in (None, size):
        raise ExportError(f"--vocabulary is {args.vocabulary}, the network has {size} ids")
    if size < file.size:
        raise ExportError(f"the tokenizer has {file.size} ids, the network {size}")
    words, masked = _words(args, file), framing.causal
    special = _special(file, framing, needs_mask=words is not None and not masked)
    text = _framed(args.prompt or TEXT, file, framing, special)
    settings: dict[str, Setting] = {"vocabulary": size, "classes": len((args.labels or "").split(","))}
    if words is not None:
        _check_answer(args, framing)
        settings["words"] = ",".join(str(number) for number in words.values())
        if not framing.causal:
            settings["mask"] = special[3]
        text = msgspec.structs.replace(text, words=tuple(words))
    if args.factory not in ("lstm", "gru"):
        settings["length"] = max(int(args.input), 1) if args.input.isdecimal() else 1
    return TextReading(text, encode(file), size, settings)


def _file(args: argparse.Namespace) -> TokenizerFile | None:
    if args.tokenizer is not None and args.tokenizer_from is not None:
        raise ExportError("--tokenizer and --tokenizer-from are both given, expected one of them")
    if args.tokenizer is not None:
        return vocabulary.read(args.tokenizer)
    if args.tokenizer_from is None:
        return None
    form: Form = "byte-pairs/1" if args.factory in ("roberta", "opt") else "word-pieces/1"
    size = TOKENS if args.tokens is None else args.tokens
    if not LEAST_TOKENS <= size <= MOST_IDS:
        raise ExportError(f"--tokens is {size}, expected {LEAST_TOKENS} to {MOST_IDS}")
    return vocabulary.learn_tokenizer(vocabulary.texts_of(args.tokenizer_from), form, size)


def _special(file: TokenizerFile, framing: Framing, needs_mask: bool) -> tuple[int, int, int, int]:
    """Ids of the tokens for start, end, padding and mask; -1 for one that is not needed."""
    names = NAMES[file.form]
    if framing.causal:
        names = (names[1], *names[1:])
    needed = (framing.start, framing.end, True, needs_mask)
    ids = file.vocabulary
    if missing := [name for name, need in zip(names, needed, strict=True) if need and name not in ids]:
        raise ExportError(f"the tokenizer has no {missing[0]}")
    start, end, padding, mask = (ids.get(name, -1) for name in names)
    if padding != framing.padding:
        raise ExportError(f"the tokenizer fills up with id {padding}, the network with {framing.padding}")
    return start, end, padding, mask


def _framed(
    template: str, file: TokenizerFile, framing: Framing, special: tuple[int, int, int, int]
) -> TextInput:
    """The prompt as ids before and after a text. Raises ExportError.

    As in published tokenizers, a mask takes the space before it.
    """
    if template.count(TEXT) != 1 or template.count(MASK) > 1 or (framing.causal and MASK in template):
        masks = "no" if framing.causal else "at most one"
        raise ExportError(f"--prompt {template!r} is not as expected: one {TEXT}, and {masks} {MASK}")
    start, end, padding, mask = special
    if MASK in template and mask < 0:
        raise ExportError(f"the tokenizer has no {NAMES[file.form][3]}")
    tokenizer = file.tokenizer()
    before, after = ([*_ids(part, tokenizer, mask)] for part in template.split(TEXT))
    before = [start, *before] if framing.start else before
    after = [*after, end] if framing.end else after
    return TextInput(file.form, File("", "", 0), tuple(before), tuple(after), padding, template)


def _ids(part: str, tokenizer: Any, mask: int) -> list[int]:
    first, masked, rest = part.partition(MASK)
    if not masked:
        return list(tokenizer.ids(first))
    return [*tokenizer.ids(first.rstrip(" ")), mask, *tokenizer.ids(rest)]


def _words(args: argparse.Namespace, file: TokenizerFile) -> dict[str, int] | None:
    """The id of the word for each label. Raises ExportError for one that is no single token."""
    if args.words is None:
        return None
    names, labels = args.words.split(","), (args.labels or "").split(",")
    if len(names) != len(labels) or len(set(names)) != len(names):
        raise ExportError(
            f"--words are {args.words!r} for {len(labels)} labels: expected a different one for each"
        )
    tokenizer, word_ids = file.tokenizer(), {}
    for name in names:
        ids = list(tokenizer.ids(name))
        if len(ids) != 1 or ids == [getattr(tokenizer, "unknown", None)]:
            hint = "; a word within a sentence begins with a space" if file.form == "byte-pairs/1" else ""
            raise ExportError(f"the word {name!r} is no single token, but {len(ids)} or an unknown one{hint}")
        word_ids[name] = ids[0]
    return word_ids


def _check_answer(args: argparse.Namespace, framing: Framing) -> None:
    if args.factory in ("lstm", "gru"):
        raise ExportError(f"{args.factory} is no language model: it has no words to answer with")
    if not framing.causal and MASK not in (args.prompt or ""):
        raise ExportError(f"--words need a --prompt with a {MASK}, where {args.factory} answers")
    if args.new_head:
        raise ExportError("--words take the language model's own head: omit --new-head")
