"""Numbers as papers print them."""

from math import isnan

import pytest

from benchmarks.papers.measures import value_of


@pytest.mark.parametrize(
    "cell, value",
    [
        ("62.95±2.84", 62.95),
        ("91.73 ± 0.43", 91.73),
        ("1803.71", 1803.71),
        ("4.5×10^8", 4.5e8),
        ("4.1×10^{-3}", 4.1e-3),
        ("2.56GB", 2.56e9),
        ("5.49MB", 5.49e6),
        ("1,390.07", 1390.07),
    ],
)
def test_the_first_number_counts(cell, value):
    assert value_of(cell) == pytest.approx(value)


def test_a_cell_without_a_number_has_none():
    assert isnan(value_of("na"))
