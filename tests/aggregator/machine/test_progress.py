"""Early stop: what is a gain, when a run is stuck, and which model is left behind."""

from dataclasses import replace
from math import nan

import pytest

from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import (
    ContributionId,
    DevicePresent,
    Finish,
    PhaseDone,
    Validated,
)
from device_runtime.aggregator.machine.state import RoundsState, Rules, Saved
from device_runtime.aggregator.tasks.closing import Progress, score_of
from device_runtime.broker.wire import step_log as steps


def through(scores, gain=0.0, rolled_back=()):
    progress = Progress()
    for number, score in enumerate(scores, 1):
        progress = progress.after(number, score, gain, number in rolled_back)
    return progress


@pytest.mark.parametrize(
    ("scores", "gain", "best", "stuck"),
    [
        ([0.5, 0.6, 0.7], 0.0, 3, False),
        ([0.5, 0.6, 0.6, 0.6], 0.0, 2, True),
        ([0.5, 0.6, 0.61, 0.62], 0.05, 2, True),
        ([0.5, 0.6, 0.62, 0.66], 0.05, 4, False),
        ([nan, nan, nan], 0.0, 0, False),
        ([0.5, nan, nan], 0.0, 1, False),
        ([0.5, nan, 0.4], 0.0, 1, True),
    ],
    ids=[
        "gains",
        "none",
        "too small",
        "small ones add up",
        "no evaluation",
        "not yet evaluated",
        "sometimes",
    ],
)
def test_two_rounds_without_a_gain_since_the_best_are_enough(scores, gain, best, stuck):
    progress = through(scores, gain)
    assert (progress.best, progress.stuck(len(scores), 2)) == (best, stuck)


def test_a_run_that_was_set_back_has_as_many_rounds_again():
    assert through([0.6, 0.5, 0.5]).stuck(3, 2)
    assert not through([0.6, 0.5, 0.5], rolled_back={3}).stuck(3, 2)
    assert through([0.6, 0.5, 0.5, 0.5, 0.5], rolled_back={3}).stuck(5, 2)
    assert through([0.6, 0.5, 0.5, 0.5, 0.5], rolled_back={3}).best == 1


def test_without_stop_after_nothing_is_ever_stuck():
    assert not through([0.5] * 50).stuck(50, 0)


def test_a_loss_is_better_the_lower_it_is():
    assert score_of("loss", 0.1, 2.0) < score_of("loss", 0.1, 1.0)
    assert score_of("accuracy", 0.9, 5.0) == 0.9


RULES = Rules(rounds=9, round_deadline_s=10.0, stop_after=1)


def one_round(state, number, score):
    commands = []
    for event in (
        Validated(number, ContributionId("a", number, "full", 1, 1)),
        *(PhaseDone(number, phase) for phase in ("merge", "evaluate")),
        PhaseDone(number, "publish", score),
    ):
        state, more = machine.step(state, event)
        commands += more
    return state, commands


def test_the_machine_ends_the_run_and_names_the_best_round():
    state, _ = machine.step(RoundsState(RULES), DevicePresent(0.0, "a", 1, True))
    for number, score in ((1, 0.5), (2, 0.9)):
        state, commands = one_round(state, number, score)
        assert state.phase == "collect"
    state, commands = one_round(state, 3, 0.7)
    assert (state.phase, commands[-1]) == ("done", Finish(2))


def test_a_run_that_ends_by_its_rounds_serves_its_best_too_where_it_was_to_stop():
    rules = replace(RULES, rounds=2, stop_after=5)
    state, _ = machine.step(RoundsState(rules), DevicePresent(0.0, "a", 1, True))
    state, _ = one_round(state, 1, 0.8)
    _, commands = one_round(state, 2, 0.7)
    assert commands[-1] == Finish(1)


def test_a_run_that_was_not_to_stop_serves_its_last_model():
    rules = replace(RULES, rounds=2, stop_after=0)
    state, _ = machine.step(RoundsState(rules), DevicePresent(0.0, "a", 1, True))
    state, _ = one_round(state, 1, 0.8)
    _, commands = one_round(state, 2, 0.7)
    assert commands[-1] == Finish()


def test_a_round_that_rolled_back_goes_on_from_the_progress_of_the_earlier_model():
    earlier = through([0.5])
    state = RoundsState(RULES, "publish", round=4, progress=through([0.5, 0.9, 0.7]))
    state, _ = machine.step(state, PhaseDone(4.0, "publish", 0.4, earlier))
    assert state.progress == earlier.after(4, 0.4, rolled_back=True)
    assert (state.phase, state.round) == ("collect", 5)


def test_after_a_restart_a_stuck_run_is_still_done():
    saved = Saved(3, "closed", progress=through([0.5, 0.9, 0.7]))
    state, commands = machine.resume(RULES, saved, 0.0)
    assert (state.phase, commands) == ("done", (Finish(2),))


@pytest.fixture
def graded(bench, make_task, bundle, monkeypatch):
    """A service whose models have the accuracies that the test says, round by round."""

    def make(scores, kind="few-shot", **settings):
        from device_runtime.aggregator.merging.evaluation import Evaluator
        from device_runtime.aggregator.storage.store import ModelEvaluation

        scores_ = iter(scores)
        monkeypatch.setattr(Evaluator, "figures", lambda *_: ModelEvaluation(next(scores_), 1.0, 0.5))
        b = bench(make_task(kind, **settings))
        b.join("a")
        return b

    return make


def test_the_best_model_is_deployed_and_offered_at_the_end(graded, update_of):
    b = graded([0.5, 0.9, 0.8, 0.7], rounds=9, stop_after=2)
    for number in range(1, 5):
        b.contribute("a", b.contribution("few-shot", update_of("few-shot", number), number))
    assert b.service.state.phase == "done"
    deployed = (b.folder / "served.safetensors").read_bytes()
    assert deployed == b.store.models.get(b.store.rounds.made(2).served)
    assert deployed != b.store.models.get(b.store.rounds.made(4).served)
    assert b.offer.done
    assert b.offer.round == 4
    assert b.offer.base.sha == b.store.rounds.made(2).served.sha
    assert all(b.store.models.has(part) for part in b.offer.base.checkpoint)
    b.restart()
    assert b.service.state.phase == "done"
    assert (b.folder / "served.safetensors").read_bytes() == deployed


def test_the_log_that_leads_to_the_best_model_is_there_for_who_fetches_that(graded, update_of, monkeypatch):
    monkeypatch.setattr(steps, "TAIL_BYTES", 0)  # as after more steps than an offer holds
    b = graded([0.5, 0.9, 0.8, 0.7], "zeroth-order", rounds=9, stop_after=2)
    for number in range(1, 5):
        b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order", number), number))
    base = b.offer.base
    assert (b.offer.done, base.at, base.tail) == (True, 2, ())
    assert [b.store.models.has(blob) for blob in base.log] == [True]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_model_that_was_given_up_is_not_what_is_served_in_the_end(graded, update_of, restarts):
    b = graded([0.5, 0.9, 0.5, 0.6, 0.55], rounds=5, stop_after=5)
    for number in range(1, 6):
        if number == 3:
            b.service._run.go_back(1)
        if restarts:
            b.restart().join("a")
            b.wait(1.1)
        b.contribute("a", b.contribution("few-shot", update_of("few-shot", number), number))
    assert b.service.state.phase == "done"
    assert b.service.state.progress == b.service.rounds.progress.latest()
    deployed = (b.folder / "served.safetensors").read_bytes()
    assert (
        deployed
        == b.store.models.get(b.store.rounds.made(4).served)
        != b.store.models.get(b.store.rounds.made(2).served)
    )


def test_a_restart_between_the_last_round_and_the_best_model_serves_the_best(graded, update_of):
    b = graded([0.9, 0.8], rounds=9, stop_after=1)
    b.contribute("a", b.contribution("few-shot", update_of("few-shot", 1)))
    b.service._run.commands.finish = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        b.contribute("a", b.contribution("few-shot", update_of("few-shot", 2), 2))
    assert (b.folder / "served.safetensors").read_bytes() == b.store.models.get(b.store.rounds.made(2).served)
    b.restart()
    assert (b.folder / "served.safetensors").read_bytes() == b.store.models.get(b.store.rounds.made(1).served)
