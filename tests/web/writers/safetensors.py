"""Tensors as Python writes them, and bytes that it refuses."""

import json
from typing import Any

import numpy as np

from device_runtime.models.bundles import tensors
from device_runtime.models.errors import TensorError

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "float16",
    "int32",
    "uint32",
    "float32",
    "float64",
    "int64",
    "uint64",
)
ALL = {f"t.{dtype}": np.arange(6).reshape(2, 3).astype(dtype) for dtype in DTYPES}
NAMES = ("b", "a", "ä", '"\\\n', "ff", "🦊", "\uffff", "10", "9", "__proto__")
SETS = {
    "nothing": {},
    "of every dtype": ALL,
    "names": {name: np.full((1,), at, np.float32) for at, name in enumerate(NAMES)},
    "shapes": {
        "scalar": np.float32(1.5).reshape(()),
        "none": np.zeros((0, 3), np.float32),
        "floats": np.array([[-0.0, np.nan], [np.inf, 1e-45]], np.float32),
    },
}


def raw(header: Any, values: bytes = b"", size: int | None = None) -> bytes:
    words = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(words) if size is None else size).to_bytes(8, "little") + words + values


def entry(begin: int, end: int, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


REFUSED = {
    "too short": b"1234567",
    "header beyond the end": raw({}, size=1000),
    "header is no JSON": raw(b"{nothing"),
    "header is no UTF-8": raw(b'{"\xff": 1}'),
    "header is a list": raw([]),
    "unknown dtype": raw({"a": entry(0, 4, dtype="F33")}, bytes(4)),
    "no dtype": raw({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "shape of texts": raw({"a": entry(0, 4, ["1"])}, bytes(4)),
    "negative shape": raw({"a": entry(0, 4, [-1])}, bytes(4)),
    "another size": raw({"a": entry(0, 4, [2])}, bytes(4)),
    "a hole": raw({"a": entry(4, 8)}, bytes(8)),
    "too few values": raw({"a": entry(0, 4)}, bytes(3)),
    "values left over": raw({"a": entry(0, 4)}, bytes(5)),
    "overlapping": raw({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)),
    "one place": raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4)),
}


def refused(data: bytes) -> bytes:
    """What Python does not read; it does not say the same of it each time."""
    try:
        tensors.decode(data)
    except TensorError:
        return data
    raise AssertionError(f"{data!r} is read")


def vectors() -> dict[str, Any]:
    with_metadata = raw({"__metadata__": {"format": "np"}, "a": entry(0, 4)}, bytes(4))
    assert list(tensors.decode(with_metadata)) == ["a"]
    return {
        "sets": [
            {
                "of": of,
                "bytes": tensors.encode(content),
                "tensors": [
                    {
                        "name": name,
                        "dtype": str(tensor.dtype),
                        "shape": tensor.shape,
                        "values": tensor.tobytes(),
                    }
                    for name, tensor in sorted(content.items())
                ],
            }
            for of, content in SETS.items()
        ],
        "with_metadata": with_metadata,
        "refused": [{"of": of, "bytes": refused(data)} for of, data in REFUSED.items()],
    }
