"""Updates as Python's codecs write them, round after round, and what they leave out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles import tensors
from device_runtime.strategies.codecs.chain import codec_named
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.interface.device_half import NO_TENSORS

WORDS = [
    "+".join(word for word in (change, numbers, packing) if word)
    for change in ("", "delta")
    for numbers in ("", "half", "int8")
    for packing in ("", "deflate")
]
NONE = ("zstd", "delta+", "+", "int8+half", "deflate+delta", "delta+delta", "Half", "toString")
ROUNDS = 2

Tensors = dict[str, NDArray[Any]]


def base() -> Tensors:
    draw = np.random.default_rng(3)
    return {
        "conv.weight": draw.standard_normal((7, 3, 13), np.float32),
        "head.bias": draw.standard_normal(33, np.float32),
        "head.few": draw.standard_normal(31, np.float32),
        "norm.running_var": np.abs(draw.standard_normal(5, np.float32)),
        "norm.count": np.array(7),
        "scalar": np.float32(0.25).reshape(()),
        "none": np.zeros((0, 3), np.float32),
        "huge": np.full(40, 3e38, np.float32),
        "tiny": np.full(40, 1e-39, np.float32),
        "another shape": np.zeros((2, 20), np.float32),
    }


def update(number: int) -> Tensors:
    draw = np.random.default_rng(number)
    old = base()
    new = {
        name: (value + 0.01 * draw.standard_normal(value.shape)).astype(value.dtype)
        for name, value in old.items()
    }
    signs = np.where(np.arange(40) % 2, -1, 1)
    new["norm.count"] = np.array(2**40 + number)
    new["huge"] = (signs * 3.1e38).astype(np.float32)
    new["tiny"] = (1e-39 * signs * np.arange(40)).astype(np.float32)
    new["another shape"] = draw.standard_normal(40, np.float32)
    new["not in the base"] = draw.standard_normal((2, 3), np.float32)
    new["ties"] = (np.arange(64) - 32).astype(np.float32) / 2
    if number == ROUNDS:
        del new["head.bias"]  # what was left out of it is left out still
    return new


def sequence(word: str) -> list[dict[str, Any]]:
    codec, left, entries = codec_named(word), NO_TENSORS, []
    for number in range(1, ROUNDS + 1):
        encoded = codec.encode(update(number), base() | {"ties": np.zeros(64, np.float32)}, left)
        entries.append(
            {"plain": encoded.body, "left": None if encoded.left is None else tensors.encode(encoded.left)}
        )
        left = encoded.left or {}
    return entries


def refused(word: str) -> str:
    try:
        codec_named(word)
    except CodecError as error:
        return str(error)
    raise AssertionError(f"{word} is a codec")


def vectors() -> dict[str, Any]:
    return {
        "base": tensors.encode(base() | {"ties": np.zeros(64, np.float32)}),
        "updates": [tensors.encode(update(number)) for number in range(1, ROUNDS + 1)],
        "codecs": [
            {"word": word, "lossy": codec_named(word).lossy, "rounds": sequence(word)}
            for word in WORDS
            if "deflate" not in word
        ],
        "none": [{"word": word, "python": refused(word)} for word in NONE],
        "predicted": [
            {"word": word, "values": values, "count": count, "exact": exact, "bytes": size}
            for word in WORDS
            for values, count, exact in ((0, 0, 0), (175_066, 40, 0), (1001, 3, 7), (640, 2, 12))
            for size in [codec_named(word).payload_bytes(values, count, exact)]
        ],
    }
