"""A run with central noise: what its rounds offer, spend, keep on disk and refuse."""

from math import isnan

import numpy as np
import pytest

from device_runtime.aggregator.errors import RunFolderError, TaskError
from device_runtime.aggregator.machine.run_events import RoundOpened
from device_runtime.aggregator.rounds.run import OpenRun
from device_runtime.aggregator.tasks.mask_settings import CentralNoise, MaskSettings
from device_runtime.aggregator.views.console_log import summary

NOISE = {"epsilon": 4.0, "delta": 1e-3, "clip_norm": 0.5}
ROUNDS = 3


@pytest.fixture
def noisy(make_task, helpers):
    def make(rounds=ROUNDS, **more):
        settings = MaskSettings(tuple(helper.written for helper in helpers), 2, **{**NOISE, **more})
        return make_task("full", masks=settings, rounds=rounds)

    return make


@pytest.fixture
def b(bench, noisy):
    new_bench = bench(noisy())
    new_bench.join("pi-0", "pi-1", samples=20)
    new_bench.wait(11)
    return new_bench


@pytest.fixture
def play(b, mask_of, helpers):
    """Plays round `number`: two devices contribute the base, which they move by `step`."""

    def send(number, step=0.0, at=b):
        base = at.service.rounds.weights(number)
        tensors = {name: value + np.float32(step) for name, value in base.items()}
        for device in ("pi-0", "pi-1"):
            [receipt] = at.contribute(device, mask_of(at, device, "full", (tensors, 20), number))
            assert receipt.status == "accepted", receipt.reason
        for helper in helpers:
            helper.answer(at)

    return send


def test_offers_have_the_noise_and_the_norm_of_the_budget(b):
    expected = CentralNoise.of(b.task.masks, ROUNDS)
    for masks in (b.offer.masks, b.service.offers.lobby().masks):
        assert (masks.noise_milli, masks.clip_milli) == (expected.noise_milli, 500)


def test_what_is_spent_is_on_disk_when_a_round_opens_and_in_its_record_when_it_closes(b, play):
    expected = CentralNoise.of(b.task.masks, ROUNDS)
    assert b.store.sums.noise() == {1: expected.noise_milli}
    play(1)
    [closed] = b.store.rounds.closed()
    spent = expected.spent([expected.noise_milli])
    assert closed.record.central_epsilon == pytest.approx(spent)
    assert f", epsilon {spent:.2f} spent by noise" in summary(closed)
    play(2)
    again = b.restart()
    assert list(again.store.sums.noise()) == [1, 2, 3], "the third round is open"
    assert again.service.rounds.budget.spent(3) <= 4.0 < again.service.rounds.budget.spent(3) * 1.01


def test_the_helpers_noise_is_in_the_served_model_by_the_formula(b, play, helpers):
    """Two devices with a share of 1: the mean has half of the deviation of the sum."""
    base = b.service.rounds.weights(1)
    for helper in helpers:
        helper.noise = np.random.default_rng(len(helper.name) + helper.secret[0]).bytes
    play(1)
    after = b.service.rounds.weights(2)
    moved = np.concatenate([(after[name] - base[name]).ravel() for name in sorted(base)])
    expected = CentralNoise.of(b.task.masks, ROUNDS).deviation / 2
    assert moved.std() == pytest.approx(expected, rel=5 / (2 * moved.size) ** 0.5)
    assert isnan(b.store.rounds.closed()[0].record.train_loss)


def test_a_round_beyond_the_budget_is_not_opened(b, play):
    """As after a run of more rounds with the same budget: the database has their noise."""
    masks = b.store.sums.masks(1)
    with b.store._db.commit() as db:
        b.store.sums.add_masks(db, 7, masks)
        b.store.sums.add_masks(db, 8, masks)
    assert not b.service.finished
    play(1)
    assert b.store.rounds.latest_closed() == 1, "what came before is published"
    assert not b.store.rounds.opened(2)
    assert b.service.finished
    why = "round 2 cannot be opened: one more round would spend epsilon 4.778 after 3 with"
    assert b.service._run.commands.gave_up.startswith(why)


def test_a_round_that_is_opened_again_after_a_crash_is_charged_once(b):
    for _ in range(3):
        b = b.restart()
    assert list(b.store.sums.noise()) == [1]


def test_a_norm_that_rounding_may_exceed_is_refused_before_devices_are_asked(bench, noisy):
    first = bench(noisy(clip_norm=0.001))
    first.join("pi-0", "pi-1", samples=20)
    first.wait(11)
    for at in (first, first.restart()):
        why = "round 1 cannot be opened: full: rounding changes an update by up to 1.3e-05, more than 1% of"
        assert at.service.finished and at.service._run.commands.gave_up.startswith(why)
    assert first.heard(RoundOpened) == []


def test_a_budget_that_no_noise_keeps_is_refused_at_the_start(bench, noisy):
    with pytest.raises(TaskError, match="masks.epsilon: no noise keeps"):
        bench(noisy(epsilon=1e-9, delta=1e-12, rounds=1000))


def test_without_noise_nothing_is_spent(bench, masked_task):
    b = bench(masked_task("full"))
    b.join("pi-0", "pi-1", samples=20)
    b.wait(11)
    assert b.offer.masks.noise_milli == 0 and b.store.sums.noise() == {}
    assert isnan(b.service.rounds.budget.spent(1))


def test_a_run_with_noise_gets_no_more_rounds_than_its_noise_was_made_for(b, noisy):
    b.service.close()
    with pytest.raises(RunFolderError, match=rf"another task \(rounds {ROUNDS}, now {ROUNDS + 1}\)"):
        OpenRun(noisy(ROUNDS + 1), b.folder, database=b.database)
