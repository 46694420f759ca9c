"""Scalars that come after their round: a step along the directions of that, beside those of this one."""

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.tensors import encode
from device_runtime.strategies.directions.replaying import replay
from device_runtime.strategies.interface.device_half import Late, Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.merge import rebased_update
from device_runtime.strategies.robust import RULES, Robust, Screen
from device_runtime.strategies.robust.groups import FAR
from device_runtime.strategies.robust.lengths import BY_LENGTH

KIND = ZerothOrder(lr=0.1)
LAST = Late(2, 55, 0.5)
"""Of the round before that of `round_model`, with half of what it would have moved."""


def sent(first, second, samples, late=None):
    return Update(KIND.name, {"g": np.array([first, second], np.float32)}, samples, 0.5, late=late)


def merged(round_model, *updates, kinds=(KIND,)):
    folding = Folding({kind.name: kind for kind in kinds}, round_model)
    for update in updates:
        folding.add(update, float(update.num_examples))
    after, odd = folding.merged()
    assert odd == ""
    return after


def plain(step):
    return step.round, step.seed, step.share, step.scalars


def test_late_scalars_are_a_step_of_their_own_by_their_weight_and_their_share(round_model):
    """30 and 10 samples in time, 40 + 20 late: a step of 0.4 of the weight, and one of 0.6 times 0.5."""
    after = merged(
        round_model,
        sent(1.0, 0.0, 30),
        sent(4.0, 3.0, 10),
        sent(3.0, -3.0, 40, LAST),
        sent(0.0, 3.0, 20, LAST),
    )
    late, now = after.steps
    assert plain(late) == (2, 55, 0.3, (2.0, -1.0))
    assert plain(now) == (3, 77, 0.4, (1.75, 0.75))


def test_scalars_of_several_rounds_are_steps_from_the_earliest_on(round_model):
    older = Late(1, 44, 0.25)
    after = merged(
        round_model, sent(1, 1, 10, LAST), sent(2, 2, 10, older), sent(3, 3, 10), sent(4, 4, 10, older)
    )
    assert [plain(step) for step in after.steps] == [
        (1, 44, 0.125, (3.0, 3.0)),
        (2, 55, 0.125, (1.0, 1.0)),
        (3, 77, 0.25, (3.0, 3.0)),
    ]


def test_a_round_of_late_scalars_alone_moves_the_model_by_their_share(round_model):
    [step] = merged(round_model, sent(1.0, 2.0, 10, LAST)).steps
    assert plain(step) == (2, 55, 0.5, (1.0, 2.0))


def test_who_replays_the_log_has_the_bits_of_the_aggregator(round_model):
    after = merged(round_model, sent(1.0, -2.0, 30), sent(3.0, 0.5, 10, LAST))
    log = msgspec.msgpack.decode(msgspec.msgpack.encode(list(after.steps)), type=list[type(after.steps[0])])
    assert encode(replay(round_model.weights, log, round_model.manifest)) == encode(after.base)
    assert after.replayable


def test_beside_full_updates_late_scalars_weigh_as_those_in_time_do_but_for_their_share(round_model):
    still = Update("full", dict(round_model.weights), 60, 0.5)
    after = merged(round_model, sent(1.0, 1.0, 20), sent(1.0, 1.0, 20, LAST), still, kinds=(KIND, FedAvg()))
    assert [step.share for step in after.steps] == pytest.approx([0.5 * 0.2, 0.2])


def test_late_scalars_are_marked_and_no_earlier_base_is_made_for_them(round_model):
    requests = []

    def base(number):
        requests.append(number)
        return round_model.weights

    moved = rebased_update(sent(1.0, 2.0, 10), LAST, round_model.round, base)
    assert (moved.late, moved.tensors["g"].tolist(), requests) == (LAST, [1.0, 2.0], [round_model.round])


HOLDING = [rule for rule in RULES if rule != "none"]


def screened(round_model, rule, updates, tmp_path, device=lambda place: f"pi-{place}"):
    folding = Folding({KIND.name: KIND}, round_model)
    with Screen(folding, Robust(rule), tmp_path) as screen:
        for place, update in enumerate(updates):
            screen.add(update, 10.0, device(place))
        return screen.merged()


@pytest.mark.parametrize("rule", HOLDING)
def test_under_a_rule_late_scalars_are_compared_with_those_of_their_directions(round_model, tmp_path, rule):
    late = [sent(-5.0, 5.0, 10, LAST)] * 4 + [sent(1e9, 1e9, 10, LAST)]
    after, _ = screened(round_model, rule, [*[sent(1.0, 2.0, 10)] * 5, *late], tmp_path)
    theirs, ours = after.steps
    assert ours.scalars == pytest.approx((1.0, 2.0))
    if rule == "norm-clip":  # all five are held to the median of ten; the liar is one, and points elsewhere
        side = (5**0.5 + 50**0.5) / 2 / 2**0.5
        assert theirs.scalars == pytest.approx((side * (1 - 4) / 5, side))
    else:
        assert theirs.scalars == pytest.approx((-5.0, 5.0))


@pytest.mark.parametrize("rule", [rule for rule in HOLDING if rule not in BY_LENGTH])
def test_under_a_rule_a_liar_does_not_get_a_step_of_its_own_by_being_late(round_model, tmp_path, rule):
    updates = [*[sent(1.0, 2.0, 10)] * 3, sent(1e9, 1e9, 10, LAST)]
    after, note = screened(round_model, rule, updates, tmp_path)
    assert [step.round for step in after.steps] == [3]
    assert f"1 zeroth-order of round 2 too few for {rule} to detect false updates, rejected" in note


@pytest.mark.parametrize("rule", sorted(BY_LENGTH))
def test_where_a_rule_goes_by_length_who_is_late_alone_goes_no_further_than_others(
    round_model, tmp_path, rule
):
    """Those in time have scalars of 3 and 4: of length 5, and a spread of all (six and two lies) of 3.5."""
    updates = [*[sent(3.0, 4.0, 10)] * 4, sent(1e9, -1e9, 10, LAST)]
    after, _ = screened(round_model, rule, updates, tmp_path)
    late, now = after.steps
    assert now.scalars == (3.0, 4.0)
    far = 5 / 2**0.5 if rule == "norm-clip" else 4 * 1.4826
    assert late.scalars == pytest.approx((far, -far))


@pytest.mark.parametrize("rule", HOLDING)
def test_three_liars_who_are_late_together_do_not_vouch_for_each_other(round_model, tmp_path, rule):
    """Of twenty devices: those in time have scalars of length 5, and the liars a step of their own."""
    updates = [*[sent(3.0, 4.0, 10)] * 17, *[sent(1e9, -1e9, 10, LAST)] * 3]
    after, note = screened(round_model, rule, updates, tmp_path)
    late, now = after.steps
    assert now.scalars == pytest.approx((3.0, 4.0))
    assert np.linalg.norm(late.scalars) <= 1.01 * FAR * 1.4826 * 4 * 2**0.5
    assert f"{rule} shortened pi-17" in note


@pytest.mark.parametrize("rule", HOLDING)
def test_three_liars_who_are_in_time_where_others_are_late_do_not_either(round_model, tmp_path, rule):
    updates = [*[sent(3.0, 4.0, 10, LAST)] * 17, *[sent(1e9, -1e9, 10)] * 3]
    after, _ = screened(round_model, rule, updates, tmp_path)
    late, now = after.steps
    assert late.scalars == pytest.approx((3.0, 4.0))
    assert np.linalg.norm(now.scalars) <= 1.01 * FAR * 1.4826 * 4 * 2**0.5


@pytest.mark.parametrize("rule", sorted(BY_LENGTH))
def test_who_is_late_for_many_rounds_at_once_has_one_voice_in_what_is_usual(round_model, tmp_path, rule):
    """Two liars of ten, with scalars of five rounds each: more than the honest eight have."""
    lies = [sent(1e9, -1e9, 10, Late(number, number, 0.5)) for number in range(1, 6) for _ in range(2)]
    updates = [*[sent(3.0, 4.0, 10)] * 8, *lies]
    after, _ = screened(round_model, rule, updates, tmp_path, lambda n: f"pi-{n if n < 8 else 8 + n % 2}")
    assert [step.round for step in after.steps] == [1, 2, 3, 4, 5, round_model.round]
    assert all(np.linalg.norm(step.scalars) <= 1.4826 * 5 * 2**0.5 for step in after.steps)


@pytest.mark.parametrize("rule", sorted(BY_LENGTH))
def test_that_two_devices_do_not_tell_a_lie_is_noted(round_model, tmp_path, rule):
    _, note = screened(round_model, rule, [sent(3.0, 4.0, 10), sent(9.0, 9.0, 10, LAST)], tmp_path)
    assert f"2 zeroth-order too few for {rule} to detect false updates" in note
