import numpy as np
import pytest

from device_runtime.strategies.directions import directions

MASK = (1 << 64) - 1


def philox4x64(counter: int, key: tuple[int, int]) -> list[int]:
    """Philox4x64-10, written out from Salmon et al. 2011, section 3.3, in plain integers."""
    c, k = [counter, 0, 0, 0], list(key)
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(p1 >> 64) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 64) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def by_hand(seed: int, index: int, size: int) -> list[float]:
    words = [w for block in range(-(-size // 4)) for w in philox4x64(block + 1, (seed, index))]
    return [(w.bit_count() - 32) / 4 for w in words[:size]]


def test_philox_written_out_gives_the_known_answer_of_its_authors():
    answer = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox4x64(0, (0, 0)) == answer


def signs_by_hand(seed: int, index: int, size: int) -> list[float]:
    words = [w for block in range(-(-size // 256)) for w in philox4x64(block + 1, (seed, index))]
    return [1.0 if words[i // 64] >> (i % 64) & 1 else -1.0 for i in range(size)]


@pytest.mark.parametrize("seed, index", [(0, 0), (77, 1), (MASK, 3)])
def test_direction_is_the_popcount_of_philox_words(seed, index):
    assert directions.direction(seed, index, 0, 23).tolist() == by_hand(seed, index, 23)


@pytest.mark.parametrize("seed, index", [(0, 0), (77, 1), (MASK, 3)])
def test_rademacher_is_the_bits_of_philox_words(seed, index):
    direction = directions.direction(seed, index, 0, 333, directions.RADEMACHER)
    assert direction.tolist() == signs_by_hand(seed, index, 333)


def test_golden_vectors_of_rademacher_version_1():
    assert directions.RADEMACHER == "philox4x64-rademacher/1"
    first = directions.direction(2024, 0, 0, 12, directions.RADEMACHER).tolist()
    assert first == [1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0]
    far = directions.direction(2024, 1, 1 << 40, 70, directions.RADEMACHER)[-6:].tolist()
    assert far == [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]


def test_golden_vectors_of_version_1():
    """Other implementations copy these; they may never change under this generator's name."""
    assert directions.GENERATOR == "philox4x64-popcount/1"
    first = directions.direction(2024, 0, 0, 12).tolist()
    assert first == [-1.0, 0.25, -0.75, -1.0, -1.0, -2.25, -1.25, -2.0, 0.75, -1.0, -2.25, 0.25]
    far = directions.direction(2024, 1, 1 << 40, 4).tolist()
    assert far == [-0.25, -0.5, 0.5, 1.5]


@pytest.mark.parametrize("generator", directions.GENERATORS)
def test_blocks_joined_are_the_whole_direction(generator):
    size = 2 * directions.BLOCK + 5
    whole = directions.direction(9, 0, 0, size, generator)
    joined = np.empty(size, np.float32)
    for where, z in directions.blocks(9, 0, size, generator):
        joined[where] = z
    np.testing.assert_array_equal(joined, whole)


@pytest.mark.parametrize("generator, step", [(directions.GENERATOR, 4), (directions.RADEMACHER, 256)])
def test_a_direction_can_be_entered_in_the_middle(generator, step):
    whole = directions.direction(9, 2, 0, 16 * step, generator)
    part = directions.direction(9, 2, 6 * step, 10 * step, generator)
    np.testing.assert_array_equal(part, whole[6 * step :])
    with pytest.raises(ValueError, match=f"multiples of {step}, not at 6"):
        directions.direction(9, 2, 6, 8, generator)


@pytest.mark.parametrize("generator", directions.GENERATORS)
def test_elements_have_mean_zero_and_variance_one(generator):
    z = directions.direction(1, 0, 0, 1 << 18, generator).astype(np.float64)
    assert abs(z.mean()) < 5 / 512  # five standard errors
    assert abs(z.var() - 1) < 5 * np.sqrt(2) / 512


def test_popcount_without_numpy_2_is_the_same():
    words = np.random.Philox(3).random_raw(1000)
    words[:2] = 0, MASK
    counts = [int(w).bit_count() for w in words]
    assert directions._popcount_in_words(words).tolist() == counts
    assert directions._popcount(words).tolist() == counts


def test_unknown_generator_is_refused_by_name():
    with pytest.raises(directions.UnknownGenerator, match="torch-normal"):
        directions.check_generator("torch-normal/1")
    with pytest.raises(directions.UnknownGenerator, match="this version has 'philox4x64-popcount/1', 'phil"):
        directions.direction(1, 0, 0, 4, "philox4x64-popcount/2")
