from dataclasses import replace

import pytest

from device_runtime.broker.wire.messages import Shortages
from device_runtime.device.selection.choose import Candidate, UpdateChoice
from device_runtime.device.selection.resting import RestRule, least_percent
from device_runtime.profiles import StragglerVerdict
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import kind_statistics
from device_runtime.strategies.training.workload import workload

STRAGGLER, FAST = StragglerVerdict(True, ("needs 9 s",)), StragglerVerdict(False, ())
WANTED = Shortages(statistics=bytes([0, 20, 90, *[0] * 7]), training=bytes([0, 0, 45, *[0] * 7]))


def plan(kind, verdict=STRAGGLER):
    strategy = kind_statistics.with_class_statistics(registry.make(kind), ClassStatistics())
    return UpdateChoice(Candidate(strategy, None, ()), (), verdict)


@pytest.fixture
def load(bundle):
    def of(**counts):
        return workload(bundle.manifest, tuple(counts.get(f"c{label}", 0) for label in range(10)))

    return of


@pytest.mark.parametrize(
    "kind, counts, percent",
    [
        ("class-means", {"c0": 9}, 10),  # nothing of it is wanted
        ("class-means", {"c0": 9, "c1": 9}, 20),
        ("few-shot", {"c1": 3, "c2": 2}, 90),
        ("class-means", {"c1": 3, "c2": 1}, 20),  # of one sample no mean is sent
        ("full", {"c0": 9}, 30),
        ("entropy-subset", {"c2": 9}, 45),
    ],
)
def test_a_straggler_takes_part_by_the_shortage_of_the_class_that_is_most_wanted(kind, counts, percent, load):
    of = load(**counts)
    takes_part = [not RestRule(WANTED, draw).reason(plan(kind), of) for draw in range(100)]
    assert takes_part == [draw < percent for draw in range(100)]


def test_a_full_update_and_a_device_that_sits_out_are_never_at_rest(load):
    rule, of = RestRule(WANTED, 99), load(c0=9)
    assert rule.reason(plan("full", FAST), of) == ""
    assert rule.reason(replace(plan("full"), chosen=None), of) == ""
    assert rule.reason(plan("class-means", FAST), of).startswith("rests: nothing wanted (class-means brings")


def test_the_lowest_probability_depends_on_whether_the_extractor_is_trained():
    plans = (plan("class-means", FAST), plan("full"), plan("full", FAST), replace(plan("full"), chosen=None))
    assert [least_percent(each) for each in plans] == [10, 30, 100, 100]


def test_a_device_does_not_rest_where_classes_are_others_than_those_it_knows_of_its_samples(load):
    strata = Shortages(statistics=bytes(64), training=bytes(64))
    assert RestRule(strata, 99).reason(plan("class-means"), load(c0=9)) == ""


def test_the_draw_is_the_same_for_a_round_and_device_and_evenly_spread():
    draws = [RestRule.of(WANTED, 7, f"pi-{number}").draw for number in range(1000)]
    assert draws == [RestRule.of(WANTED, 7, f"pi-{number}").draw for number in range(1000)]
    assert draws != [RestRule.of(WANTED, 8, f"pi-{number}").draw for number in range(1000)]
    assert 0.45 < sum(draw < 50 for draw in draws) / 1000 < 0.55
    assert RestRule.of(None, 7, "pi-1") is None
