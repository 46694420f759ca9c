import tracemalloc
import zlib

import numpy as np
import pytest

from device_runtime.models.errors import TensorError
from device_runtime.strategies.codecs.codec import Deflate

PACKING = Deflate()


@pytest.mark.parametrize("size", [0, 1, 100, 70_000])
def test_what_was_packed_is_unpacked_and_never_takes_more_than_is_allowed_for(size):
    data = np.random.default_rng(0).bytes(size)
    packed = PACKING.pack(data)
    assert PACKING.unpack(packed, size) == data
    assert size < len(packed) <= PACKING.most(size)


def test_a_bomb_is_refused_before_it_takes_memory():
    """A hundred megabytes of zeros in a hundred kilobytes."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    tracemalloc.start()
    with pytest.raises(
        TensorError, match="deflated bytes unpack to more than 1000, the most that is expected"
    ):
        PACKING.unpack(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_one_byte_more_than_is_expected_is_refused():
    assert PACKING.unpack(zlib.compress(bytes(1000)), 1000) == bytes(1000)
    with pytest.raises(TensorError, match="more than 999"):
        PACKING.unpack(zlib.compress(bytes(1000)), 999)


def test_what_ends_too_early_goes_on_or_is_something_else_is_refused():
    packed = PACKING.pack(b"weights" * 9)
    with pytest.raises(TensorError, match="end too early"):
        PACKING.unpack(packed[:-1], 100)
    with pytest.raises(TensorError, match="followed by others"):
        PACKING.unpack(packed + b"x", 100)
    with pytest.raises(TensorError, match="are not deflated"):
        PACKING.unpack(b"weights", 100)
    with pytest.raises(TensorError, match="end too early"):
        PACKING.unpack(b"", 100)
