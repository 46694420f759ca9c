"""Rounds that are given from outside: each has the base, the seed and the deadline that it was given."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime import cli
from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.machine import step as machine
from device_runtime.aggregator.machine.events import (
    Announce,
    Close,
    DevicePresent,
    DoPhase,
    Extend,
    Give,
    PhaseDone,
    TimePassed,
)
from device_runtime.aggregator.machine.run_events import RoundClosed
from device_runtime.aggregator.machine.state import RoundsState, Rules, Saved
from device_runtime.aggregator.machine.step import step
from device_runtime.aggregator.storage import bases, run_files
from device_runtime.aggregator.storage.model_versions import SERVED
from device_runtime.aggregator.storage.run_files import GIVEN_ROUND_FILE, GivenRound
from device_runtime.aggregator.storage.store import CarriedBlobs

RULES = Rules(rounds=9, round_deadline_s=10.0, given=True)


def play(state, *events):
    commands = []
    for event in events:
        state, more = step(state, event)
        commands += more
    return state, commands


def here(*devices):
    return [DevicePresent(0.0, device, 1, True) for device in devices]


def end_of_work(now):
    return [PhaseDone(now, phase) for phase in ("merge", "evaluate", "publish")]


def test_no_round_begins_by_itself_neither_the_first_nor_the_next():
    state, commands = play(RoundsState(RULES), *here("a", "b"), TimePassed(99.0))
    assert (state.phase, commands) == ("wait", [])
    state, commands = play(state, Give(100.0, 7.0, 1))
    assert commands == [Announce(1)]
    assert (state.round, state.closes_at) == (1, 107.0)
    state, commands = play(state, Close(101.0), *end_of_work(102.0), TimePassed(200.0))
    assert commands == [DoPhase("merge", 1), DoPhase("evaluate", 1), DoPhase("publish", 1)]
    assert (state.phase, state.round) == ("wait", 1)
    state, commands = play(state, Give(300.0, 5.0, 4))
    assert (state.round, commands) == (4, [Announce(4)])


def test_the_open_round_may_be_given_again_with_another_deadline():
    state, _ = play(RoundsState(RULES), *here("a"), Give(0.0, 7.0, 1))
    state, commands = play(state, Give(5.0, 20.0, 1), TimePassed(24.0))
    assert commands == [Extend(1, 0)]
    assert state.closes_at == 25.0


def test_a_round_that_is_being_merged_takes_no_other_and_is_not_closed_twice():
    state, _ = play(RoundsState(RULES), *here("a"), Give(0.0, 7.0, 1), Close(1.0))
    assert play(state, Close(1.0), Give(1.0, 7.0, 2))[1] == []


def test_after_a_restart_the_latest_round_is_not_followed_by_another():
    state, commands = machine.resume(RULES, Saved(3, "closed"), 50.0)
    assert (state.phase, state.round, commands) == ("wait", 3, ())
    state, commands = machine.resume(replace(RULES, round_deadline_s=4.0), Saved(3, "collect"), 50.0)
    assert (state.phase, state.closes_at, commands) == ("collect", 54.0, (Announce(3, again=True),))


@pytest.fixture
def site(bench, make_task):
    return bench(make_task("full", "zeroth-order", rounds=9), given=True)


def given_round(site, number, shift, **changes):
    """A round whose base is the bundle's weights and `shift`."""
    rounds = site.service.rounds
    weights = {n: v + np.asarray(shift, v.dtype) for n, v in site.weights(rounds.initial.start.base).items()}
    base = bases.checkpoint(weights, rounds.store.models, rounds.manifest)
    fields = {"seed": 77, "deadline_s": 30.0, "base": base, "carried": CarriedBlobs(), "source": b"up"}
    return GivenRound(number=number, **{**fields, **changes})


def test_a_given_round_is_offered_and_merged_with_what_it_was_given(site, update_of):
    site.join("a")
    assert site.offer.round == 0
    site.service.give(given_round(site, 1, 0.5))
    offer = site.offer
    assert (offer.round, offer.seed, offer.deadline_s, offer.remaining_s) == (1, 77, 30.0, 30.0)
    scalars = update_of("zeroth-order")
    assert site.contribute("a", site.contribution("zeroth-order", scalars))[0].status == "accepted"
    site.wait(1.0)
    assert site.service.state.phase == "wait"
    assert [step.seed for step in site.store.step_history.last(2, 1)] == [77]
    site.service.give(given_round(site, 2, 0.25, seed=78))
    weights, bundle = map(site.weights, (site.offer.base, site.service.rounds.initial.start.base))
    assert all(np.array_equal(weights[n], v + np.asarray(0.25, v.dtype)) for n, v in bundle.items())
    assert site.offer.seed == 78


def test_a_given_round_outlives_the_process(site, update_of):
    site.join("a", "b")
    site.service.give(given_round(site, 1, 0.5))
    base = site.offer.base
    site.contribute("a", site.contribution("full", update_of("full")))
    site.restart()
    assert site.service.state.phase == "collect"
    assert (site.offer.seed, site.offer.deadline_s, site.offer.base) == (77, 30.0, base)
    assert site.service.rounds.given(1).source == b"up"
    site.service.close_round()
    assert [c.record.participants for c in site.heard(RoundClosed)] == [1]
    site.restart()
    assert (site.service.state.phase, site.service.state.round) == ("wait", 1)


def test_a_round_is_given_after_those_before_it_and_not_while_another_is_open(site):
    site.service.give(given_round(site, 3, 0.5))
    with pytest.raises(ValueError, match=r"round 4 cannot be given in round 3 \(collect\)"):
        site.service.give(given_round(site, 4, 0.5))
    site.service.close_round()
    for number in (2, 3):
        with pytest.raises(ValueError, match=rf"round {number} cannot be given in round 3 \(wait\)"):
            site.service.give(given_round(site, number, 0.5))


def test_rounds_that_were_not_given_take_no_contributions_and_harm_nobody(bench, make_task, update_of):
    site = bench(make_task("full", "zeroth-order", rounds=9, late="count", max_staleness=5), given=True)
    site.join("a", "b")
    for number in (2, 5):
        site.service.give(given_round(site, number, 0.5 * number))
        receipts = site.contribute("a", site.contribution("full", update_of("full"), number))
        assert receipts[0].status == "accepted"
        site.service.close_round()
    site.service.give(given_round(site, 6, 0.5))
    [refused] = site.contribute("b", site.contribution("full", update_of("full"), 4))
    assert (refused.status, refused.reason) == (
        "refused",
        "update from b refused: round 4 was not offered by this site",
    )
    assert site.contribute("b", site.contribution("full", update_of("full"), 2))[0].status == "accepted"
    site.service.close_round()
    assert [closed.record.participants for closed in site.heard(RoundClosed)] == [1, 1, 1]


def test_what_was_given_and_cannot_be_read_is_said_in_one_line(site):
    site.service.give(given_round(site, 1, 0.5))
    (site.folder / GIVEN_ROUND_FILE).write_bytes(b"rubbish")
    with pytest.raises(RunFolderError, match=r"cannot read .*outside\.msg"):
        site.restart()


def test_a_site_does_not_go_back_by_itself(site, update_of, capsys):
    site.join("a")
    for number in (1, 2):
        site.service.give(given_round(site, number, 0.5))
        site.contribute("a", site.contribution("full", update_of("full"), number))
        site.wait(1.0)
    before = (site.folder / SERVED).read_bytes()
    assert cli.main(["models", str(site.folder), "--rollback", "1"]) == 2
    assert "its base models come from the aggregator above" in capsys.readouterr().err
    run_files.request_rollback(site.folder, 1)
    site.wait(0.1)
    assert (site.folder / SERVED).read_bytes() == before
    assert site.store.history.rollbacks() == ()
    assert cli.main(["models", str(site.folder)]) == 0
