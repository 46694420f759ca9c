"""Runs whose updates are masked: what is not opened, what is clipped, and the noise in a mean."""

from collections import Counter
from dataclasses import dataclass, field
from math import isnan, nan

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.merging.merge_round import MergeTools as ServerSide
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.simulation.clock.sampling import PendingUpdate
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.history.bases import BaseHistory, ShippedModel
from device_runtime.simulation.rounds.learning import LearningTools, ModelState
from device_runtime.simulation.rounds.ledger import RoundFigures
from device_runtime.simulation.rounds.masked_sums import SimulatedSums
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.registry import make

SIZES = (10, 40, 40, 20)
"""Samples of the devices; each moves every weight by STEP."""
STEP = 0.001
NOISE = {"epsilon": 5.0, "delta": 1e-3, "clip_norm": 0.5}
FORMS = {name: make(name, {"epochs": 1}) for name in ("full", "peft")}


@dataclass
class Stepping:
    """Updates that move each weight of the base by STEP."""

    name: str = "stepping"
    trained: list[str] = field(default_factory=list)

    def run(self, bases, jobs):
        for job in jobs:
            self.trained.append(job.name)
            tensors = {name: value + np.float32(STEP) for name, value in bases[job.base].items()}
            yield Update(job.strategy.name, tensors, SIZES[job.device], 1.0, job.strategy.variant)


@dataclass
class Told:
    ends: list[tuple[str, str]] = field(default_factory=list)

    def ended(self, flight, fate, now, **more):
        self.ends.append((flight.device, fate))

    def trained(self, job, update):
        pass


class Run:
    def __init__(self, bundle, **masks):
        task = Task(
            bundle="digits-wrn-10-1",
            late="count",
            rounds=4,
            kinds=tuple(KindSettings(name=name, settings={"epochs": 1}) for name in ("full",)),
            masks=msgspec.convert(scenario.stand_in_helpers(masks), type=scenario.MaskSettings),
        )
        self.weights = bundle.weights()
        self.notes, self.executor, self.checkpoints = Told(), Stepping(), []
        self.bases = BaseHistory({"": ShippedModel.of(bundle)}, self.weights, CarriedState())
        ends = np.cumsum([0, *SIZES])
        clients = Clients(np.zeros(ends[-1]), np.zeros(ends[-1], int), np.arange(ends[-1]), ends)
        sums = SimulatedSums.of(task, clients, {"": bundle.manifest})
        tools = LearningTools(
            ServerSide({"": bundle}),
            self.executor,
            lambda *_: RoundFigures(nan),
            self.notes,
            self.notes,
            self.checkpoints.append,
            sums,
        )
        self.learning = ModelState(task, self.bases, CarriedState(), tools)

    def round(self, number, *flights):
        """Merges full updates of these devices, made for these rounds; gives the round's figures."""
        for device, asked_in in flights:
            flight = PendingUpdate(device, str(device), "all", asked_in, 0.0, "full", FORMS["full"], None)
            self.learning.keep(flight)
        self.learning.merge(number, 0.0)
        self.learning.evaluate(number)
        return self.learning.publish(number, range(1, number + 1))

    def moved(self, number=1):
        """How far round `number` moved each weight."""
        before, after = (self.bases.of(n).weights for n in (number, number + 1))
        return np.concatenate([(after[name] - before[name]).ravel() for name in sorted(after)])


def test_a_group_that_is_too_small_is_neither_trained_nor_merged(bundle):
    run = Run(bundle, min_group=3)
    figures = run.round(1, (0, 1), (1, 1))
    assert run.notes.ends == [("0", "unopened"), ("1", "unopened")]
    assert not run.executor.trained and not run.moved().any()
    assert figures.unopened == 2 and isnan(figures.central_epsilon)
    assert run.bases.alone(2) == ("full",)


def test_late_updates_are_a_group_of_their_own(bundle):
    run = Run(bundle, min_group=2)
    run.round(1, (0, 1), (1, 1))
    figures = run.round(2, (0, 2), (1, 2), (2, 1))
    assert run.notes.ends[2:] == [("2", "unopened"), ("0", "counted"), ("1", "counted")]
    assert figures.unopened == 1
    assert run.bases.alone(3) == (), "another group of the kind was opened"


def test_the_mean_of_an_opened_group_is_that_of_its_updates(bundle):
    run = Run(bundle, min_group=2)
    run.round(1, (0, 1), (1, 1), (3, 1))
    np.testing.assert_allclose(run.moved(), STEP, atol=1e-6)


def test_each_update_is_clipped_to_the_norm(bundle):
    run = Run(bundle, min_group=2, **NOISE)
    sums, base = run.learning._tools.sums, run.weights
    flight = PendingUpdate(0, "0", "all", 1, 0.0, "full", FORMS["full"], None)
    long = {name: value + np.float32(1.0) for name, value in base.items()}
    sums.divide(1, [flight])
    sums.bounded(Update("full", long, 10, 1.0), flight, base)  # which gets the noise
    update = sums.bounded(Update("full", long, 10, 1.0), flight, base)
    change = np.concatenate([(update.tensors[name] - base[name]).ravel() for name in base])
    assert np.linalg.norm(change.astype(np.float64)) == pytest.approx(0.5, rel=1e-3)
    assert isnan(update.train_loss), "the loss would have no noise"


def test_the_noise_of_the_mean_has_the_deviation_of_the_helpers_sum_over_the_shares(bundle):
    """most_weight is 40 samples, so that the devices' shares are 1/4, 1, 1 and 1/2."""
    run = Run(bundle, min_group=2, **NOISE)
    figures = run.round(1, *((device, 1) for device in range(4)))
    noise, expected = run.moved(), run.learning._tools.sums._noise.deviation / 2.75
    assert noise.std() == pytest.approx(expected, rel=5 / (2 * noise.size) ** 0.5)
    assert 0 < figures.central_epsilon < 5 and figures.unopened == 0
    assert [run.round(number).central_epsilon <= 5 for number in (2, 3, 4)] == [True] * 3


def test_each_sum_has_noise_of_its_own_and_a_repeated_run_the_same(bundle):
    runs = [Run(bundle, min_group=2, **NOISE) for _ in range(2)]
    for run in runs:
        run.round(1, (0, 1), (1, 1))
        run.round(2, (0, 2), (1, 2))
    first, second = runs[0].moved(1), runs[0].moved(2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / first.size**0.5
    assert (runs[1].moved(2) == second).all()


MIXED = {
    "devices": 12, "slow": 20.0, "data": {"max_train": 360, "max_test": 40},
    "task": {"rounds": 4, "round_deadline_s": 6.0, "masks": {"min_group": 3}},
}  # fmt: skip


class Asks:
    def __init__(self):
        self.asks, self.lines = [], []

    def asked(self, ask):
        self.asks.append(ask)

    def trained(self, job, update):
        pass

    def closed(self, line):
        self.lines.append(line)


@pytest.mark.parametrize("masks", [{"min_group": 3}, {"min_group": 3, **NOISE}])
def test_a_run_goes_on_as_if_it_had_not_been_stopped(masks):
    kinds = [{"name": "full"}, {"name": "zeroth-order"}]
    setting = scenario.load("mixed", {**MIXED, "task": {**MIXED["task"], "kinds": kinds, "masks": masks}})
    checkpoints, whole, rest = [], Asks(), Asks()
    served = simulate(prepare(setting, 0), observer=whole, keeping=ResumeOptions(keep=checkpoints.append))
    again = simulate(prepare(setting, 0), observer=rest, keeping=ResumeOptions(resume=checkpoints[1]))
    assert all((served[name] == again[name]).all() for name in served)
    assert [line.unopened for line in whole.lines[2:]] == [line.unopened for line in rest.lines]
    unopened = [ask for ask in whole.asks if ask.fate == "unopened"]
    assert sum(line.unopened for line in whole.lines) == len(unopened)
    counted = Counter((a.kind, a.round, a.into) for a in whole.asks if a.fate == "counted")
    assert min(counted.values()) >= 3


def test_devices_take_another_kind_after_a_round_in_which_theirs_was_alone():
    """Two devices have the time for full updates, three for the head only, and a sum takes three."""
    speeds = {"fast": (0.4, 1.0), "slow": (0.6, 0.2)}
    groups = {
        name: {"profile": "pi-5", "share": share, "speed": {"factor": speed}}
        for name, (share, speed) in speeds.items()
    }
    task = {
        "rounds": 3,
        "round_deadline_s": 1.2,
        "wait_for": "all",
        "head": "trained",
        "kinds": [
            {"name": "full", "settings": {"graded": False}},
            {"name": "peft", "settings": {"tunable": "head", "tunables": []}},
        ],
        "masks": {"min_group": 3},
    }
    data = {"max_train": 200, "max_test": 40, "partition": "iid"}
    fields = {"fleet": {"name": "two", "groups": groups}, "devices": 5, "slow": 20.0}
    watch = Asks()
    simulate(prepare(scenario.load("uniform", {**fields, "data": data, "task": task}), 0), observer=watch)
    kinds = [sorted(ask.kind for ask in watch.asks if ask.round == number) for number in (1, 2, 3)]
    assert kinds == [["full"] * 2 + ["peft"] * 3, ["peft"] * 5, ["full"] * 2 + ["peft"] * 3]
    assert [line.unopened for line in watch.lines] == [2, 0, 2]


def test_helpers_may_be_a_number_in_a_scenario():
    setting = scenario.load("digits", {"task": {"masks": {"helpers": 2, "min_group": 4}}})
    assert len(setting.task.masks.keys) == 2 and setting.task.masks.min_group == 4
    with pytest.raises(ScenarioError, match="helpers are 4, expected 1 to 3"):
        scenario.load("digits", {"task": {"masks": {"helpers": 4}}})


def test_central_noise_by_name_needs_no_masks_in_the_scenario():
    setting = scenario.of_policy(scenario.load("digits"), "fedavg+central-dp")
    assert (setting.task.masks.epsilon, setting.task.masks.delta) == (5.0, 1e-3)
    masks = {**NOISE, "epsilon": 2.0, "min_group": 7}
    own = scenario.load("digits", {"task": {"kinds": [{"name": "full"}], "masks": masks}})
    setting = scenario.of_policy(own, "lp+central-dp")
    assert (setting.task.masks.epsilon, setting.task.masks.min_group) == (2.0, 7)


def test_a_device_has_one_voice_in_a_sum_however_many_updates_it_sends(bundle):
    run = Run(bundle, min_group=2)
    run.round(1, (0, 1), (1, 1), (2, 1))
    run.notes.ends.clear()
    run.round(2, (3, 1), (3, 2), (0, 2), (1, 1))
    assert run.notes.ends == [("3", "late"), ("1", "unopened"), ("0", "counted"), ("3", "counted")]
