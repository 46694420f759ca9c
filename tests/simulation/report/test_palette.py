"""One thing has one colour; things that stand beside each other are told apart, by any eyes."""

from itertools import combinations

import numpy as np
import pytest

from device_runtime.simulation.report.canvas import FATES, KINDS, kind_colour, outcomes, stroke
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds import registry

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
EYES = {
    "usual": np.eye(3),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def lab(colour, eyes):
    """CIE L*a*b* (D65) of a hex colour as these eyes see it."""
    srgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    as_seen = np.clip(eyes @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ as_seen
    scaled = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", EYES)
def test_kinds_are_told_apart(eyes):
    for left, other in combinations(KINDS.values(), 2):
        assert np.linalg.norm(lab(left, EYES[eyes]) - lab(other, EYES[eyes])) > 12


def test_every_usual_kind_has_a_colour_of_its_own():
    assert set(registry.DEFAULT_KINDS) <= set(KINDS)
    assert len(set(KINDS.values())) == len(KINDS)
    assert not set(KINDS.values()) & set(FATES.values())


def test_policies_differ_in_more_than_colour():
    drawn = [stroke(policy) for policy in scenario.POLICIES]
    assert len({(look.dashes, look.marker) for look in drawn}) == len(drawn)


def test_a_policy_of_one_kind_has_the_kind_s_colour():
    assert stroke("few-shot").colour == kind_colour("few-shot") == KINDS["few-shot"]


def test_a_kind_unknown_here_always_gets_the_same_spare_colour():
    assert kind_colour("telepathy") == kind_colour("telepathy")


def test_outcomes_are_stacked_from_the_richest_kind_to_the_worst_fate():
    names = {"crashed", "few-shot", "late", "full", "telepathy"}
    assert outcomes(names) == ["full", "few-shot", "telepathy", "late", "crashed"]
