"""Whole runs on digits: small, but with everything real but time."""

from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.torch_engine.copies import TorchCopies
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.executors.batched import Batched
from device_runtime.simulation.executors.job import PlainExecutor
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds import registry

FLEET = {
    "name": "two",
    "groups": {
        "quick": {"profile": "pi-5", "share": 0.5, "speed": {"sigma": 0.3, "jitter": 0.2}},
        "slow": {
            "profile": "pi-zero-2w",
            "share": 0.5,
            "failures": {"crash": 0.2, "drop": 0.2, "away_s": 5.0},
        },
    },
}
SETTLED = {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}


class Notes:
    def __init__(self):
        self.asks, self.lines, self.jobs = [], [], []

    def asked(self, ask):
        self.asks.append(ask)

    def trained(self, job, update):
        self.jobs.append(job)

    def closed(self, line):
        self.lines.append(line)


def play(seed=0, fleet=FLEET, task=None, **settings):
    over = {
        "fleet": fleet,
        "devices": 8,
        "slow": 20.0,
        "data": {"samples_per_client": 40},
        "task": {"rounds": 3, "round_deadline_s": 3.0, **(task or {})},
        **settings,
    }
    notes = Notes()
    served = simulate(prepare(scenario.load("uniform", over), seed), observer=notes)
    return served, notes


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    served, notes = play(seed=1)
    again, others = play(seed=1)
    assert tensors.encode(served) == tensors.encode(again)
    assert [repr(asdict(ask)) for ask in notes.asks] == [repr(asdict(ask)) for ask in others.asks]
    assert [repr(asdict(line)) for line in notes.lines] == [repr(asdict(line)) for line in others.lines]
    assert tensors.encode(play(seed=2)[0]) != tensors.encode(served)


@pytest.mark.slow
def test_lines_sum_up_what_the_asks_say():
    _, notes = play()
    assert [line.round for line in notes.lines] == [1, 2, 3]
    ended = [ask for ask in notes.asks if ask.fate != "unheard"]
    assert sum(line.asked for line in notes.lines) == len(ended)
    assert sum(line.energy_j for line in notes.lines) == pytest.approx(sum(ask.energy_j for ask in ended))
    assert sum(line.bytes_up for line in notes.lines) == sum(ask.bytes_up for ask in ended)
    assert {ask.into for ask in ended if ask.fate == "counted"} == {1, 2, 3}
    assert all(line.closed_s <= 3.0 * line.round + 1e-9 for line in notes.lines)
    assert len(notes.lines[0].eval_acc_by_class) == 10


def test_stragglers_send_what_they_can_afford():
    never_fails = {**FLEET, "groups": {n: {**g, "failures": {}} for n, g in FLEET["groups"].items()}}
    full = {"name": "full", "settings": {"graded": False}}
    whole = [full, {"name": "entropy-subset"}, {"name": "few-shot"}]
    _, notes = play(fleet=never_fails, task={"wait_for": "all", "kinds": whole})
    kinds = {group: Counter(a.kind for a in notes.asks if a.group == group) for group in ("quick", "slow")}
    assert set(kinds["quick"]) == {"full"}
    assert "full" not in kinds["slow"]
    assert all(ask.straggler == (ask.group == "slow") for ask in notes.asks)
    assert all(ask.fate == "counted" for ask in notes.asks)


def test_a_late_update_is_thrown_away_or_counts_in_the_next_round():
    """3 kB take a second at the median, and now and then much more than the deadline leaves."""
    late = {"rounds": 4, "round_deadline_s": 2.5, "kinds": [{"name": "class-means"}]}
    fleet = {
        "name": "jittery",
        "groups": {
            "all": {
                "profile": "pi-zero-2w",
                "share": 1.0,
                "link": {"jitter": 1.5, "up_bytes_per_s": 3e3},
            }
        },
    }
    _, discarded = play(fleet=fleet, task=late, data={"samples_per_client": 10})
    fates = Counter(ask.fate for ask in discarded.asks)
    assert fates["late"] > 0
    assert all(ask.into == ask.round for ask in discarded.asks if ask.fate == "counted")
    some = {"late": "count", "devices_per_round": 4}  # a device that is asked again counts with the newer one
    _, counted = play(fleet=fleet, task={**late, **some}, data={"samples_per_client": 10})
    assert any(ask.into > ask.round for ask in counted.asks if ask.fate == "counted")


@pytest.mark.slow
def test_a_buffered_run_closes_rounds_by_their_number_and_keeps_devices_busy():
    _, notes = play(task={"rounds": 6, "buffer_size": 3, "devices_per_round": 5})
    counted = {(ask.into, ask.device) for ask in notes.asks if ask.fate == "counted"}
    assert Counter(number for number, _ in counted) == dict.fromkeys(range(1, 7), 3)
    assert max(line.staleness for line in notes.lines) > 0
    at = sorted({ask.asked_s for ask in notes.asks})
    for moment in at[1:]:
        busy = sum(ask.asked_s <= moment < ask.ended_s for ask in notes.asks)
        assert busy <= 5


@pytest.mark.slow
def test_a_cohort_asks_so_many_devices_each_round_and_not_always_the_same():
    _, notes = play(fleet=SETTLED, task={"rounds": 4, "devices_per_round": 3})
    by_round = [{a.device for a in notes.asks if a.round == number} for number in (1, 2, 3, 4)]
    assert [len(devices) for devices in by_round] == [3] * 4
    assert len(set.union(*by_round)) > 3


@pytest.mark.slow
def test_a_device_that_was_asked_before_does_not_fetch_the_bundle_again():
    _, notes = play(fleet=SETTLED)
    first = {a.bytes_down for a in notes.asks if a.round == 1}
    later = {a.bytes_down for a in notes.asks if a.round > 1}
    assert len(first) == len(later) == 1
    assert max(first) > max(later)


def test_jobs_are_given_in_the_order_of_preference_and_device():
    _, notes = play()
    order = registry.DEFAULT_KINDS
    for number in (1, 2, 3):
        keys = [(order.index(j.strategy.name), j.name) for j in notes.jobs if j.base == number]
        assert keys == sorted(keys)


def test_a_fleet_that_cannot_do_the_task_is_said_to_be_unable():
    task = {"rounds": 2, "round_deadline_s": 0.001, "kinds": [{"name": "full"}]}
    with pytest.raises(
        SimulationError, match=r"round 1 has 0 of 1 updates: devices were asked \d+ times in vain"
    ):
        play(task=task)


def test_samples_with_labels_that_the_bundle_does_not_have_are_left_out_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "odd.npz", x=rng.random((60, 1, 8, 8), np.float32), y=np.arange(60) % 12)
    data = {"source": "npz", "path": str(tmp_path / "odd.npz"), "partition": "iid"}
    prepared = prepare(scenario.load("uniform", {"devices": 4, "data": data}), 0)
    assert len(prepared.data.train_y) + len(prepared.data.test_y) == 50
    notes = "; ".join(prepared.data.notes)
    for label in (10, 11):
        assert f"left out: label '{label}' is not of the task: 5 (odd.npz" in notes


@pytest.mark.slow
def test_whoever_watches_sees_each_update_that_counts():
    _, notes = play(fleet=SETTLED)
    assert len(notes.jobs) == sum(ask.fate == "counted" for ask in notes.asks) == 24


def test_an_update_that_diverged_is_refused_and_the_base_stays_as_it_was():
    """A learning rate of 1e38 soon gives weights that float32 does not hold."""
    kinds = [{"name": "full", "settings": {"lr": 1e38, "epochs": 3}}]
    with np.errstate(all="ignore"):
        served, notes = play(fleet=SETTLED, task={"rounds": 1, "kinds": kinds})
    assert {ask.fate for ask in notes.asks} == {"refused"}
    assert all("finite" in ask.why for ask in notes.asks)
    base = Bundle.open(bundles.find_bundle("digits-wrn-10-1")).weights()
    assert tensors.encode(served) == tensors.encode(base)


def test_the_executor_is_closed_whatever_happens():
    closed = []

    class Watched(PlainExecutor):
        def close(self):
            closed.append(True)
            super().close()

        def run(self, bases, jobs):
            raise RuntimeError("no more")

    over = {"fleet": SETTLED, "devices": 4, "task": {"rounds": 1}}
    with pytest.raises(RuntimeError, match="no more"):
        simulate(prepare(scenario.load("uniform", over), 0), Watched)
    assert closed == [True]


def test_the_generic_set_is_held_out_of_the_data_or_comes_from_a_file(tmp_path):
    data = {"generic_samples": 50, "generic_classes": 3, "samples_per_client": 5}
    prepared = prepare(scenario.load("uniform", {"devices": 8, "data": data}), 1)
    assert prepared.generic.x.shape == (50, 1, 8, 8)
    assert prepared.generic.x.dtype == np.float32
    assert len(set(prepared.generic.y.tolist())) == 3
    assert len(prepared.data.train_y) == 1437 - 50
    np.savez(tmp_path / "own.npz", x=np.ones((4, 1, 8, 8)), y=np.arange(4))
    task = {"generic": str(tmp_path / "own.npz")}
    from_file = prepare(scenario.load("uniform", {"devices": 8, "task": task}), 1)
    assert from_file.generic.y.tolist() == [0, 1, 2, 3]
    assert prepare(scenario.load("uniform", {"devices": 8}), 1).generic is None
    with pytest.raises(ScenarioError, match="give one of them"):
        scenario.load("uniform", {"devices": 8, "task": task, "data": data})
    missing = {"devices": 8, "task": {"generic": str(tmp_path / "none.npz")}}
    with pytest.raises(ScenarioError, match=r"generic set .*none\.npz"):
        prepare(scenario.load("uniform", missing), 1)


def test_a_family_is_opened_by_the_names_in_its_bundles(tmp_path):
    over = {"devices": 8, "task": {"family": ["digits-wrn-10-1"]}}
    with pytest.raises(ScenarioError, match="two models of the family are called 'digits-wrn-10-1'"):
        prepare(scenario.load("uniform", over), 1)


def test_a_family_is_trained_by_kinds_and_groups_that_call_it_by_its_file_or_not_at_all(exported, tmp_path):
    (tmp_path / "smaller.zip").symlink_to(exported.half)
    group = {"profile": "pi-5", "share": 0.5}
    over = {
        "devices": 4,
        "fleet": {
            "name": "two",
            "groups": {"any": group, "weak": {**group, "members": ["smaller.zip"]}},
        },
        "task": {
            "bundle": exported.taught,
            "rounds": 1,
            "family": [str(tmp_path / "smaller.zip")],
            "kinds": [{"name": "width-slice"}],
        },
    }
    prepared, notes = prepare(scenario.load("uniform", over), 1), Notes()
    assert prepared.scenario.fleet.groups["weak"].members == ("half",)
    simulate(prepared, observer=notes)
    assert {job.strategy.member for job in notes.jobs} == {"half"}
    over["fleet"]["groups"]["weak"]["members"] = ["other.zip"]
    with pytest.raises(
        ScenarioError, match=r"groups.weak.members: no 'other.zip' in the task's family, which"
    ):
        prepare(scenario.load("uniform", over), 1)


def test_a_fresh_start_is_fetched_while_devices_wait_and_is_another_for_another_seed():
    """All of the weights in round 1's lobby, beside the bundle; in later rounds what has changed."""
    kinds = [{"name": "class-means"}]  # which leave all but the head as it is
    task = {"start": "random", "rounds": 1, "round_deadline_s": 600.0, "kinds": kinds}
    weights, notes = play(seed=1, fleet=SETTLED, task=task, slow=1.0)
    other, _ = play(seed=2, fleet=SETTLED, task=task, slow=1.0)
    _, shipped = play(seed=1, fleet=SETTLED, task={**task, "start": "bundle"}, slow=1.0)
    size = len(tensors.encode(weights))
    more = notes.asks[0].bytes_down - shipped.asks[0].bytes_down
    assert size < more < 1.05 * size  # with the header of each part
    assert notes.asks[0].download_s == 0.0
    drawn = [name for name in weights if name.endswith("conv1.weight")]
    assert drawn
    assert not any(np.array_equal(weights[name], other[name]) for name in drawn)


def test_updates_trained_together_are_checked_weighed_and_merged_where_they_are(monkeypatch):
    """None of their tensors is read; the result equals that of the plain executor.

    But for the head in closed form, which magnifies the difference of float32.
    """
    task = {
        "kinds": [{"name": "full", "settings": {"epochs": 1, "batch": 8}}],
        "rounds": 2,
        "head": "closed-form",
    }
    over = {
        "fleet": SETTLED,
        "devices": 8,
        "engine": "torch",
        "data": {"samples_per_client": 40},
        "task": task,
    }
    alone = simulate(prepare(scenario.load("uniform", over), 0))
    monkeypatch.setattr(TorchCopies, "fetched", lambda _, name: pytest.fail(f"{name} was read"))
    together = simulate(
        prepare(scenario.load("uniform", over), 0), lambda of: Batched(of, PlainExecutor(of), networks=True)
    )
    for name in sorted(alone.keys() - {"head.weight", "head.bias"}):
        np.testing.assert_allclose(together[name], alone[name], atol=5e-4, err_msg=name)
