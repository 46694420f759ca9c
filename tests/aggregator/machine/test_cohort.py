from collections import Counter
from math import sqrt

import pytest
from rpds import HashTrieMap, HashTrieSet

from device_runtime.aggregator.machine.events import Invite
from device_runtime.aggregator.machine.state import RoundsState, Rules
from device_runtime.aggregator.rounds.runner import draw

NAMES = [f"pi-{i:02d}" for i in range(20)]


def state(names=NAMES, **changes):
    rules = Rules(rounds=9, round_deadline_s=1.0, devices_per_round=5)
    return RoundsState(rules, phase="collect", round=3, ready=HashTrieSet(names), **changes)


def test_the_same_devices_are_drawn_again_in_whatever_order_they_came():
    drawn = draw(state(), Invite(3, 5), seed=1)
    assert len(set(drawn)) == 5
    assert draw(state(NAMES[::-1]), Invite(3, 5), seed=1) == drawn


def test_another_seed_another_round_and_a_second_draw_give_other_devices():
    cohort = HashTrieMap({"gone": 3})
    draws = [draw(state(), Invite(number, 5), seed) for number, seed in ((3, 1), (4, 1), (3, 2))]
    assert len({*draws, draw(state(asked=cohort), Invite(3, 5), 1)}) == 4


def test_whoever_was_asked_or_is_at_work_is_not_drawn_and_no_more_than_there_are():
    cohort = HashTrieMap({**dict.fromkeys(NAMES[:5], 3), **dict.fromkeys(NAMES[5:10], 2)})
    behind = HashTrieMap(dict.fromkeys(NAMES[5:8], 0.0))
    drawn = draw(state(asked=cohort, behind=behind), Invite(3, 50), seed=0)
    assert sorted(drawn) == NAMES[8:]
    assert draw(state(()), Invite(3, 5), seed=0) == ()


@pytest.mark.parametrize("count", [1, 5])
def test_each_device_is_as_likely(count):
    """The count of one device in n draws is binomial: within five standard deviations of its mean."""
    n, share = 2000, count / len(NAMES)
    counts = Counter(name for seed in range(n) for name in draw(state(), Invite(3, count), seed))
    bound = 5 * sqrt(n * share * (1 - share))
    assert all(abs(counts[name] - n * share) < bound for name in NAMES)
