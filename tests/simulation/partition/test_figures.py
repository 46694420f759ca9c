import numpy as np
import pytest

from device_runtime.simulation.partition.figures import by_group, shape, table

Y = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
PARTS = [np.array([0, 1]), np.array([2, 3, 4, 5]), np.array([6, 7])]  # the last sample is with nobody


def test_figures_are_those_worked_by_hand():
    about = shape(Y, PARTS, 4)
    assert about.counts.tolist() == [[2, 0, 0, 0], [2, 2, 0, 0], [0, 2, 0, 0]]
    assert about.sizes.tolist() == [2, 4, 2]
    assert about.classes.tolist() == [1, 2, 1]
    assert about.effective == pytest.approx([1, 2, 1])  # exp of 0 and of ln 2
    assert about.distance == pytest.approx([0.5, 0, 0.5])  # given out: half 0, half 1
    assert about.samples == 9


def test_the_table_has_least_median_most_and_mean():
    assert table(shape(Y, PARTS, 4))[0] == ("samples of a client", "2", "2", "4", "2.67")


def test_groups_of_the_fleet_have_a_row_each_with_their_classes():
    about = shape(Y, PARTS, 4, ["weak", "strong", "weak"])
    assert by_group(about, "abcd") == [("strong", "1", "4", "a, b"), ("weak", "2", "4", "a, b")]
    many = shape(np.arange(20), [np.arange(13), np.arange(13, 20)], 20, ["a", "b"])
    assert [row[3] for row in by_group(many, [f"c{n}" for n in range(20)])] == [
        "13 of 20", "c13, c14, c15, c16, c17, c18, c19",
    ]  # fmt: skip
