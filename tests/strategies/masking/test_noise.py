import numpy as np
import pytest

from device_runtime.strategies.masking.layout import CHECKS
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.noise import CHUNK, add_noise, discrete_gaussian


def source(seed=1):
    return np.random.default_rng(seed).bytes


def noise_of(runs, deviation, random=None):
    """The noise of each run of values, in integers."""
    counts = [count for count, _ in runs]
    vector = MaskedVector.zeros(sum(counts) + CHECKS, 3)
    add_noise(vector, runs, deviation, random or source())
    assert not vector.values[-CHECKS:].any() and not vector.sums.any()
    return np.split(vector.values[:-CHECKS].view(np.int32), np.cumsum(counts)[:-1])


@pytest.mark.parametrize("parameter", [0.3, 0.5, 1.0, 1.4, 2.9, 11.3])
def test_each_integer_is_drawn_with_the_probability_of_the_discrete_gaussian(parameter):
    """Chi-square over the integers that are expected ten times or more, and over all others together."""
    count = 200_000
    drawn = discrete_gaussian(parameter, count, source())
    reach = int(12 * parameter) + 12
    expected = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * parameter**2))
    expected *= count / expected.sum()
    counts = np.bincount(drawn + reach, minlength=len(expected)).astype(float)
    often = expected >= 10
    pairs = [
        *zip(counts[often], expected[often], strict=True),
        (counts[~often].sum(), expected[~often].sum()),
    ]
    chi_square = sum((got - mean) ** 2 / mean for got, mean in pairs if mean > 0.01)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("deviation", [0.01, 3.0, 120.0])
def test_large_noise_has_the_moments_of_a_gaussian(deviation):
    """Tolerances are five standard errors of 200,000 draws."""
    (drawn,) = noise_of([(200_000, 20)], deviation)
    scaled = drawn / 2.0**20 / deviation
    assert abs(scaled.mean()) < 5 / 200_000**0.5
    assert abs(scaled.var() - 1) < 5 * (2 / 200_000) ** 0.5
    assert abs((scaled**3).mean()) < 5 * (15 / 200_000) ** 0.5
    assert abs((scaled**4).mean() - 3) < 5 * (96 / 200_000) ** 0.5
    assert 4 < np.abs(scaled).max() < 6.5
    assert abs((drawn & 1).mean() - 0.5) < 5 * 0.5 / 200_000**0.5


def test_each_run_of_values_has_the_noise_of_its_exponent():
    few, many = noise_of([(40_000, 4), (60_000, 12)], 0.5)
    assert few.std() == pytest.approx(8, rel=0.02)
    assert many.std() == pytest.approx(2048, rel=0.02)


def test_chunks_have_independent_noise_and_the_memory_of_one():
    sizes = []
    randomness = source()

    def counted(size):
        sizes.append(size)
        return randomness(size)

    (drawn,) = noise_of([(3 * CHUNK + 5, 10)], 1.0, counted)
    assert max(sizes) <= 8 * (2 * CHUNK + 16)
    first, second, third = (drawn[at : at + CHUNK] for at in (0, CHUNK, 2 * CHUNK))
    for left, right in ((first, second), (second, third), (first, third)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 5 / CHUNK**0.5


def test_the_same_random_bytes_make_the_same_noise():
    runs = [(1000, 18)]
    assert (noise_of(runs, 1.0)[0] == noise_of(runs, 1.0)[0]).all()
    assert (noise_of(runs, 1.0)[0] != noise_of(runs, 1.0, source(2))[0]).any()


def test_noise_is_added_modulo_two_to_the_32():
    vector = MaskedVector(np.full(1000 + CHECKS, 2**32 - 1, np.uint32), np.zeros(0, np.uint64))
    plain = MaskedVector.zeros(1000 + CHECKS, 0)
    add_noise(vector, [(1000, 10)], 1.0, source())
    add_noise(plain, [(1000, 10)], 1.0, source())
    assert (vector.values[:1000] == plain.values[:1000] - np.uint32(1)).all()
    assert (vector.values[1000:] == 2**32 - 1).all()


@pytest.mark.parametrize("deviation", [0.0, 1e-300, 1e-9])
def test_hardly_any_noise_is_none(deviation):
    (drawn,) = noise_of([(100, 20)], deviation)
    assert not drawn.any()


@pytest.mark.parametrize(
    ("runs", "deviation", "message"),
    [
        ([(9, 3)], 1.0, "exponents are of 9 values, expected 10"),
        ([(11, 3), (-1, 3)], 1.0, "exponents are of 10 values, expected 10"),
        ([(10, 3)], -1.0, "noise of -1 times 2"),
        ([(10, 3)], float("nan"), "noise of nan times 2"),
        ([(10, 28)], 1.0, r"noise of 1 times 2\^28, expected 0 to 1.34218e\+08"),
        ([(10, 10**6)], 1.0, r"noise of 1 times 2\^1000000"),
    ],
)
def test_what_cannot_be_added_is_refused(runs, deviation, message):
    vector = MaskedVector.zeros(10 + CHECKS, 0)
    with pytest.raises(ValueError, match=message):
        add_noise(vector, runs, deviation, source())
    assert not vector.values.any()
