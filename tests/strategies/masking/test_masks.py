import numpy as np
import pytest

from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.masking.masks import CHUNK, MaskedVector

SEED = bytes(range(32))


def vector(values: int, sums: int) -> MaskedVector:
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, 2**32, values, np.uint32), rng.integers(0, 2**64, sums, np.uint64)
    return MaskedVector(*drawn)


def test_the_keystream_is_that_of_rfc_8439():
    """Counter 1 is the first that RFC 8439, section 2.8, encrypts with; the nonce is (part, chunk)."""
    masked = MaskedVector.zeros(CHUNK // 4 + 4, 2)
    masked.add_masks([SEED])
    assert masked.values[:4].tobytes() == _chacha20_block(SEED, 1, bytes(12))[:16]
    second = (0).to_bytes(4, "little") + (1).to_bytes(8, "little")
    assert masked.values[-4:].tobytes() == _chacha20_block(SEED, 1, second)[:16]
    sums = (1).to_bytes(4, "little") + bytes(8)
    assert masked.sums.tobytes() == _chacha20_block(SEED, 1, sums)[:16]


def _chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3, written out."""

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) % 2**32
            mixed = state[z] ^ state[x]
            state[z] = (mixed << turn | mixed >> (32 - turn)) % 2**32

    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    start += [int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4)]
    start += [counter] + [int.from_bytes(nonce[i : i + 4], "little") for i in range(0, 12, 4)]
    state = list(start)
    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for a, b, c, d in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(a, b, c, d)
    total = [(x + y) % 2**32 for x, y in zip(start, state, strict=True)]
    return b"".join(word.to_bytes(4, "little") for word in total)


def test_the_block_function_of_this_test_gives_the_vector_of_the_rfc():
    """RFC 8439, section 2.3.2."""
    nonce = bytes.fromhex("000000090000004a00000000")
    assert _chacha20_block(SEED, 1, nonce).hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")


@pytest.mark.parametrize(("values", "sums"), [(0, 0), (3, 1), (CHUNK // 4, CHUNK // 8), (CHUNK // 4 + 5, 7)])
def test_masks_that_are_subtracted_leave_the_vector(values, sums):
    masked, plain, masks = vector(values, sums), vector(values, sums), MaskedVector.zeros(values, sums)
    masked.add_masks([SEED, b"\x01" * 32])
    masks.add_masks([b"\x01" * 32, SEED])
    masked.subtract(masks)
    assert (masked.values == plain.values).all() and (masked.sums == plain.sums).all()


def test_a_masked_update_is_uniform_whatever_it_holds():
    """Chi-square over bytes: 255 degrees of freedom, the 99.9% quantile is 330.5."""
    masked = MaskedVector.zeros(50_000, 5_000)
    masked.add_masks([SEED])
    counts = np.bincount(np.frombuffer(masked.to_bytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert float(((counts - expected) ** 2 / expected).sum()) < 330.5


def test_chunks_and_parts_have_different_masks():
    masked = MaskedVector.zeros(CHUNK // 2, CHUNK // 8)
    masked.add_masks([SEED])
    streams = [masked.values[: CHUNK // 4].tobytes(), masked.values[CHUNK // 4 :].tobytes()]
    assert len({*streams, masked.sums.tobytes()}) == 3


def test_a_vector_is_read_from_its_bytes():
    plain = vector(5, 2)
    again = MaskedVector.from_bytes(plain.to_bytes(), 5, 2)
    assert (again.values == plain.values).all() and (again.sums == plain.sums).all()
    with pytest.raises(MaskError, match="a masked update of 36 bytes, expected 40, for 6 values and 2 sums"):
        MaskedVector.from_bytes(plain.to_bytes(), 6, 2)


@pytest.mark.parametrize(("values", "sums"), [(5, 3), (4, 3), (5, 0), (0, 3)])
def test_the_content_of_a_vector_is_its_bytes_without_a_copy(values, sums):
    drawn, total = vector(values, sums), MaskedVector.zeros(values, sums)
    total.add(drawn)
    total.add_masks([bytes(32)])
    content = total.content()
    drawn.add_masks([bytes(32)])
    assert bytes(content) == total.to_bytes() == drawn.to_bytes() == bytes(drawn.content())
    total.values[:] += np.uint32(1)
    total.sums[:] += np.uint64(1)
    assert bytes(content) == total.to_bytes()
