"""Whole runs of one small kind, which takes hundredths of a second: what happens when, and to whom."""

from collections import Counter

import numpy as np
import pytest

from device_runtime.aggregator.tasks import drawing
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation.clock.devices import FleetState
from device_runtime.simulation.clock.sampling import _only
from device_runtime.simulation.data import loading
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.rounds import run
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.rounds.simulation_loop import WILL_S
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.prototypes import Prototypes

DAY_S = 86_400.0


class Notes:
    def __init__(self):
        self.asks, self.lines, self.checkpoints = [], [], []

    def asked(self, ask):
        self.asks.append(ask)

    def trained(self, job, update):
        pass

    def closed(self, line):
        self.lines.append(line)

    @property
    def fates(self):
        return Counter(ask.fate for ask in self.asks)


def alike(**settings):
    """A fleet of one group."""
    return {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0, **settings}}}


def play(fleet, task=None, devices=4, seed=0, resume=None, **settings):
    over = {
        "fleet": fleet,
        "devices": devices,
        "eval_every": 0,
        "data": {"partition": "iid", "samples_per_client": 10},
        "task": {"rounds": 3, "round_deadline_s": 60.0, "kinds": [{"name": "class-means"}], **(task or {})},
        **settings,
    }
    notes = Notes()
    prepared = prepare(scenario.load("uniform", over), seed)
    simulate(prepared, observer=notes, keeping=ResumeOptions(resume, notes.checkpoints.append))
    return notes


def test_one_device_alone_does_every_round():
    notes = play(alike(), devices=1)
    assert notes.fates == {"counted": 3}
    assert [line.participants for line in notes.lines] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("deadline_s", [3.0, 600.0])
def test_a_round_waits_through_a_night_in_which_nobody_is_there(deadline_s):
    """From 20:00 on, of a run that begins at 0:00; they are looked for every minute and at every deadline."""
    fleet = alike(windows=[{"start_h": 20, "length_h": 2}])
    notes = play(fleet, {"rounds": 1, "round_deadline_s": deadline_s})
    assert notes.fates == {"counted": 4}
    assert all(0 <= ask.asked_s - 20 * 3600 <= 60 for ask in notes.asks)


def test_a_fleet_that_never_comes_is_waited_for_two_days():
    fleet = alike(battery={"wh": 1.0, "start": 0.2, "minimum": 0.5})
    with pytest.raises(
        SimulationError, match="round 1 has 0 of 1 updates: no device could be asked for 48 hour"
    ):
        play(fleet)


def test_a_fleet_whose_devices_all_crash_is_given_up():
    with pytest.raises(SimulationError, match=r"devices were asked 4\d\d times in vain"):
        play(alike(failures={"crash": 1.0, "away_s": 5.0}))


def test_a_device_that_crashed_begins_again_when_it_is_back_and_its_round_waits_for_it():
    """Soon enough that no will is sent: the round does not close without it."""
    notes = play(alike(failures={"crash": 0.5, "away_s": 5.0}), {"rounds": 6})
    assert notes.fates["crashed"] > 3
    assert [line.participants for line in notes.lines] == [4] * 6
    for crash in (ask for ask in notes.asks if ask.fate == "crashed"):
        again = next(a for a in notes.asks if a.device == crash.device and a.asked_s > crash.asked_s)
        assert again.asked_s == crash.ended_s + 5.0
        assert again.round == crash.round


def test_a_round_does_not_wait_for_a_device_that_is_gone_for_long():
    """All others answer at once; the broker says that the lost are gone, and the round closes."""
    notes = play(alike(failures={"crash": 0.5, "away_s": 1e4}), {"rounds": 1, "round_deadline_s": 1e3})
    ends_at = [ask.ended_s for ask in notes.asks if ask.fate == "crashed"]
    [line] = notes.lines
    assert 0 < len(ends_at) < 4
    assert line.closed_s == pytest.approx(max(ends_at) + WILL_S)


def test_a_round_does_not_wait_for_a_link_that_is_lost_for_long_and_its_update_comes_late():
    fleet = alike(failures={"drop": 0.5, "away_s": 500.0})
    notes = play(fleet, {"rounds": 2, "round_deadline_s": 1e3, "late": "count"})
    first = notes.lines[0]
    assert 0 < first.participants < 4
    assert WILL_S < first.closed_s < WILL_S + 1


def test_a_device_that_sat_out_for_want_of_time_is_asked_again_when_the_round_is_extended():
    """The second base, 312 kB at 5 kB/s, takes over a minute: too long for the deadline, but only once."""
    task = {"rounds": 2, "round_deadline_s": 30.0, "kinds": [{"name": "full", "settings": {"epochs": 1}}]}
    notes = play(alike(link={"down_bytes_per_s": 5e3}), task, devices=1)
    assert [ask.fate for ask in notes.asks] == ["counted", "sat out", "counted"]
    _, second, third = notes.asks
    assert second.bytes_down > 300_000
    assert third.bytes_down == 0


def test_in_a_redrawn_fleet_every_device_is_a_straggler_now_and_then():
    groups = {
        "fast": {"profile": "pi-5", "share": 0.5},
        "slow": {"profile": "pi-5", "share": 0.5, "speed": {"factor": 0.01}},
    }
    fleet = {"name": "two", "groups": groups}
    for redrawn, each in ((True, {"fast", "slow"}), (False, None)):
        notes = play({**fleet, "redrawn": redrawn}, {"rounds": 12})
        by_round = Counter((ask.round, ask.group) for ask in notes.asks)
        assert set(by_round.values()) == {2}, "two of four in every round"
        for device in {ask.device for ask in notes.asks}:
            asks = [ask for ask in notes.asks if ask.device == device]
            slow = [ask.compute_s for ask in asks if ask.group == "slow"]
            fast = [ask.compute_s for ask in asks if ask.group == "fast"]
            assert {ask.group for ask in asks} == (each or {device.partition("-")[0]})
            assert not each or min(slow) > 10 * max(fast)


def test_a_first_round_of_more_epochs_takes_as_many_times_the_work():
    kinds = [{"name": "full", "settings": {"epochs": 1}, "first_epochs": 4}]
    notes = play(alike(), {"kinds": kinds, "round_deadline_s": 600.0}, devices=1)
    first, second, third = (ask.compute_s for ask in notes.asks)
    assert second == pytest.approx(third)
    assert first == pytest.approx(4 * second)


def test_a_device_is_offered_only_the_members_that_its_group_is_dealt():
    sizes = Prototypes(members=("large", "small"))
    assert _only(sizes, ("small",)) == Prototypes(members=("small",))
    assert _only(sizes, ("another",)) is None
    assert _only(FedAvg(), ("small",)) == FedAvg(), "trains the main model"


def test_a_device_that_comes_while_the_round_is_open_is_asked_then():
    """Half of them are there from 0:00, the others from 0:10; with 20 minutes to go nobody waits longer."""
    groups = {
        "early": {"profile": "pi-5", "share": 0.5, "failures": {"crash": 1.0, "away_s": 1e6}},
        "later": {"profile": "pi-5", "share": 0.5, "windows": [{"start_h": 1 / 6, "length_h": 2}]},
    }
    notes = play({"name": "two", "groups": groups}, {"rounds": 1, "round_deadline_s": 1800.0})
    assert notes.fates == {"crashed": 2, "counted": 2}
    assert {ask.asked_s for ask in notes.asks if ask.group == "later"} == {600.0}


def test_more_devices_are_wanted_than_there_are():
    assert [line.participants for line in play(alike(), {"devices_per_round": 50}).lines] == [4] * 3


def test_a_buffer_that_never_fills_is_closed_by_the_deadline():
    notes = play(alike(), {"buffer_size": 50})
    assert [(line.participants, line.closed_s) for line in notes.lines] == [(4, 60.0), (4, 120.0), (4, 180.0)]


def test_what_is_at_work_when_the_run_ends_is_unheard_also_if_it_would_have_crashed():
    """One is quick; three are a thousand times slower, and would have died before they were done."""
    slow = {"profile": "pi-5", "share": 0.75, "speed": {"factor": 0.001}, "failures": {"crash": 1.0}}
    fleet = {"name": "two", "groups": {"quick": {"profile": "pi-5", "share": 0.25}, "slow": slow}}
    notes = play(fleet, {"rounds": 1, "buffer_size": 1})
    assert notes.fates == {"counted": 1, "unheard": 3}
    for ask in notes.asks:
        busy_s = ask.download_s + ask.compute_s + ask.upload_s
        assert busy_s == pytest.approx(ask.ended_s - ask.asked_s), "it has cost what was spent until the end"


def test_a_run_stopped_after_its_last_round_still_says_what_was_unheard():
    slow = {"profile": "pi-5", "share": 0.75, "speed": {"factor": 0.001}}
    fleet = {"name": "two", "groups": {"quick": {"profile": "pi-5", "share": 0.25}, "slow": slow}}
    task = {"rounds": 1, "buffer_size": 1}
    whole = play(fleet, task)
    rest = play(fleet, task, resume=whole.checkpoints[-1])
    assert rest.asks == [ask for ask in whole.asks if ask.fate == "unheard"] != []


@pytest.mark.parametrize(("late", "most"), [("discard", 1), ("count", 2)])
def test_bases_are_kept_only_for_updates_that_may_yet_count(late, most):
    """One of four loses its link for a day; hundreds of rounds pass in the meantime."""
    groups = {
        "quick": {"profile": "pi-5", "share": 0.75},
        "lost": {"profile": "pi-5", "share": 0.25, "failures": {"drop": 1.0, "away_s": DAY_S}},
    }
    notes = play({"name": "two", "groups": groups}, {"rounds": 8, "late": late, "max_staleness": 2})
    assert max(len(checkpoint.bases) for checkpoint in notes.checkpoints) == most
    assert [base.number for base in notes.checkpoints[-1].bases] == [9]


TWO_SPEEDS = {
    "name": "two",
    "groups": {
        "quick": {"profile": "pi-5", "share": 0.75, "speed": {"jitter": 0.05}},
        "slow": {"profile": "pi-5", "share": 0.25, "speed": {"factor": 0.08, "jitter": 0.05}},
    },
}
ONE_EPOCH = [{"name": "full", "settings": {"epochs": 1}}]


@pytest.mark.slow
def test_a_round_that_waits_for_the_fast_closes_before_the_slow_and_counts_them_in_the_next():
    """Slow devices compute twelve times as long."""
    task = {"rounds": 30, "kinds": ONE_EPOCH, "round_deadline_s": 10.0, "max_staleness": 1000}
    every, fast = (
        play(TWO_SPEEDS, {**task, "wait_for": who}, devices=8, slow=50.0) for who in ("all", "fast")
    )
    assert every.lines[0].closed_s == fast.lines[0].closed_s
    assert fast.lines[-1].closed_s < 0.65 * every.lines[-1].closed_s
    assert set(fast.fates) <= {"counted", "unheard"}
    slow = [ask for ask in fast.asks if ask.group == "slow" and ask.fate == "counted" and ask.round > 2]
    assert slow and min(ask.into - ask.round for ask in slow) > 0
    assert [line.participants for line in every.lines] == [8] * 30
    assert min(line.participants for line in fast.lines) >= 5
    assert {ask.device for ask in fast.asks if ask.into > 2} == {ask.device for ask in every.asks}


def test_waiting_for_the_fast_is_waiting_for_all_where_all_are_alike():
    fleet = alike(speed={"jitter": 0.05})
    task = {"rounds": 10, "kinds": ONE_EPOCH, "round_deadline_s": 10.0, "max_staleness": 1000}
    notes = play(fleet, {**task, "wait_for": "fast"}, devices=8, slow=50.0)
    assert sum(line.participants for line in notes.lines) >= 76


def test_cohorts_of_rounds_that_wait_for_the_fast_are_drawn_of_those_that_are_free():
    task = {"rounds": 30, "kinds": ONE_EPOCH, "devices_per_round": 4, "max_staleness": 1000}
    notes = play(TWO_SPEEDS, {**task, "wait_for": "fast"}, devices=16, slow=50.0)
    assert set(notes.fates) <= {"counted", "unheard"}
    assert all(line.participants >= 1 for line in notes.lines)
    assert any(ask.into > ask.round for ask in notes.asks)


def test_a_run_that_waits_for_the_fast_goes_on_from_its_checkpoint_to_the_same_model():
    task = {"rounds": 6, "kinds": ONE_EPOCH, "wait_for": "fast", "max_staleness": 1000}
    over = {"fleet": TWO_SPEEDS, "devices": 4, "slow": 50.0, "eval_every": 0}
    over |= {"data": {"partition": "iid", "samples_per_client": 10}, "task": task}
    checkpoints = []
    prepared = prepare(scenario.load("uniform", over), 0)
    whole = simulate(prepared, keeping=ResumeOptions(keep=checkpoints.append))
    rest = simulate(prepare(scenario.load("uniform", over), 0), keeping=ResumeOptions(resume=checkpoints[3]))
    for name, value in whole.items():
        assert (rest[name] == value).all(), name


def test_of_two_million_devices_only_those_that_were_asked_have_a_state(monkeypatch):
    """Their samples repeat from the 1,000th device on."""
    states = []

    class WatchedState(FleetState):
        def __init__(self, *args):
            super().__init__(*args)
            states.append(self)

    monkeypatch.setattr(run, "FleetState", WatchedState)
    monkeypatch.setattr(loading, "REPEATED", 1000)
    groups = {name: {"profile": name, "share": 0.5} for name in ("pi-4", "pi-5")}
    data = {"partition": "dirichlet", "samples_per_client": 10, "reuse": True}
    notes = play({"name": "two", "groups": groups}, {"devices_per_round": 20}, 2_000_000, data=data)
    [state] = states
    numbers = [int(ask.device.rpartition("-")[2]) for ask in notes.asks]
    assert (len(state), notes.fates) == (2_000_000, {"counted": 60})
    assert [line.participants for line in notes.lines] == [20] * 3
    assert set(state._states) == set(numbers)
    assert len(set(numbers)) == 60, "distinct, with this seed"
    assert min(numbers) < 200_000 < 1_800_000 < max(numbers)
    names = [f"{ask.group}-{number:07d}" for ask, number in zip(notes.asks, numbers, strict=True)]
    assert [ask.device for ask in notes.asks] == names
    assert {ask.group for ask in notes.asks} == {"pi-4", "pi-5"}
    drawn = {name for name, value in vars(state.fleet.draws).items() if isinstance(value, np.ndarray)}
    assert drawn == {"group"}
    assert state.known(1_234_567).loads[""].class_counts == state.known(567).loads[""].class_counts
    assert state.samples(1_234_567) == 10


def test_many_devices_are_not_searched_while_one_in_ten_can_be_asked(monkeypatch):
    """Each is there for 2.4 hours of the day; four draws for each of 20 would find 8 of them."""
    monkeypatch.setattr(loading, "REPEATED", 100)
    monkeypatch.setattr(Fleet, "present", lambda fleet, now: pytest.fail("searched"))
    fleet = alike(windows=[{"start_h": 0, "length_h": 2.4}], zones_h=24.0)
    data = {"partition": "iid", "samples_per_client": 10, "reuse": True}
    notes = play(fleet, {"devices_per_round": 20, "rounds": 2}, 1_000_001, data=data)
    assert notes.fates == {"counted": 40}


HOUSE = {
    "name": "house",
    "groups": {
        "boards": {"profile": "pi-5", "share": 0.5, "tags": ["kitchen"]},
        "phones": {"profile": "phone-mid", "share": 0.5},
    },
}


def asked_devices(notes):
    """The devices that each round asked."""
    return [
        {ask.device for ask in notes.asks if ask.round == number} for number in range(1, len(notes.lines) + 1)
    ]


@pytest.mark.parametrize("cohort", [{}, {"devices_per_round": 3}])
def test_only_devices_that_meet_the_conditions_are_asked_and_a_round_waits_for_no_others(cohort):
    notes = play(HOUSE, {"devices_with": ["tag=kitchen"], **cohort}, devices=8)
    assert all(device.startswith("boards-") for devices in asked_devices(notes) for device in devices)
    assert [len(devices) for devices in asked_devices(notes)] == [cohort.get("devices_per_round", 4)] * 3
    assert all(line.closed_s - line.opened_s < 60 for line in notes.lines)  # none lasted until its deadline


def test_conditions_that_all_devices_meet_change_nothing():
    """But for the draw of the order in which they are asked, which is of the same numbers."""
    whole, selected = play(HOUSE), play(HOUSE, {"devices_with": ["group=boards|phones"]})
    assert repr(selected.asks) == repr(whole.asks)


def test_devices_that_are_held_out_are_evaluated_and_never_asked():
    held_out = {"hold_out_devices": ["25%"]}
    notes = play(HOUSE, held_out, devices=8, eval_every=1)
    assert [len(devices) for devices in asked_devices(notes)] == [6, 6, 6]
    assert len(set.union(*asked_devices(notes))) == 6  # the same two are left out of every round
    accuracies = [line.held_out_eval_acc for line in notes.lines]
    assert all(0 < accuracy <= 1 for accuracy in accuracies)
    assert all(round(20 * accuracy, 6).is_integer() for accuracy in accuracies)  # of ten samples each
    assert np.isnan(play(HOUSE, eval_every=1).lines[0].held_out_eval_acc)


class MostCounted(drawing.DrawingPolicy):
    """The devices that counted most often, by name where they are level."""

    name = "most-counted"

    def draw(self, candidates, count, number, rng):
        return sorted(candidates, key=lambda device: (-device.updates.rounds, device.name))[:count]


def test_an_own_policy_draws_by_what_counted_before_in_a_resumed_run_too(monkeypatch):
    monkeypatch.setitem(drawing.DrawingPolicy.registry, "most-counted", MostCounted)
    task = {"devices_per_round": 2, "draw": "most-counted", "rounds": 4}
    notes = play(HOUSE, task, devices=8)
    first, *others = asked_devices(notes)
    assert len(first) == 2
    assert others == [first] * 3
    earlier = [ask for ask in notes.asks if ask.round <= 2]
    prepared = prepare(scenario.load("uniform", {
        "fleet": HOUSE, "devices": 8, "eval_every": 0,
        "data": {"partition": "iid", "samples_per_client": 10},
        "task": {"round_deadline_s": 60.0, "kinds": [{"name": "class-means"}], **task},
    }), 0)  # fmt: skip
    again = Notes()
    simulate(prepared, observer=again, keeping=ResumeOptions(notes.checkpoints[1], asks=earlier))
    assert repr(again.asks) == repr([ask for ask in notes.asks if ask.round > 2])
