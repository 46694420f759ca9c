from dataclasses import replace
from math import isnan

import numpy as np
import pytest

from device_runtime.broker.wire.messages import Base, Blob, Offer
from device_runtime.device.backend.base import contribution_message
from device_runtime.device.energy import Account, Energy, MeterInfo, MeterReading
from device_runtime.device.engine.engine_guard import EngineGuard
from device_runtime.device.errors import OutOfMemory, WorkerDeath
from device_runtime.device.policy.privacy_budget import PrivacyGuard, SpentPrivacy
from device_runtime.device.selection.choose import MAIN, Candidate, UpdateChoice
from device_runtime.device.training.work import (
    Assignment,
    RealWorker,
    Timing,
    WorkOutcome,
    cheaper,
    corrected,
    train_richest,
)
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.errors import EngineError, TensorError
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed, StragglerVerdict
from device_runtime.profiles.device import Emulation, Time
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.terms.accountant import PrivacyBudget
from device_runtime.strategies.training.workload import workload

BLOB = Blob(bytes(32), 10)
UNLIMITED = PrivacyGuard(SpentPrivacy)
"""Of a device whose owner says nothing; its budget is never looked at unless a kind is private."""


@pytest.fixture
def every_kind():
    return tuple(registry.make(name) for name in registry.DEFAULT_KINDS)


class OnTestClock(EngineGuard):
    """By the test's clock a run of an engine takes no time, however slow this machine is."""

    def ran(self, name, graph, samples, seconds):
        super().ran(name, graph, samples, 0.0)


def equip(bundle, digits, clock, emulation=None, guard=UNLIMITED):
    engine_guard = OnTestClock(10**12, emulation, time=Time(clock, clock.sleep))
    return RealWorker(
        "dev",
        {MAIN: OnnxModel(bundle, watch=engine_guard)},
        digits,
        {MAIN: workload(bundle.manifest, digits.class_counts(10))},
        engine_guard,
        clock,
        guard,
    )


def believed(flops_per_s):
    return DeviceProfile(
        "dev", 1, Memory(10**12, 10**12), Speed(flops_per_s), Bandwidth(1e9, 1e9), Power(1.0, 5.0)
    )


def test_a_plan_that_fits_is_carried_out_and_accounted_for(bundle, digits, clock, every_kind):
    emulation = Emulation.of("pi-4", slow=1)
    worker = equip(bundle, digits, clock, emulation)
    outcome = train_richest(worker, believed(0.6e9 / 0.062), Assignment(every_kind, 1, closes_at=1.0))
    assert outcome.update.kind == outcome.plan.chosen.kind == "entropy-subset"
    assert outcome.train_time_s <= 1.0
    assert outcome.energy_j == pytest.approx(5 * outcome.train_time_s)
    assert outcome.peak_memory_bytes > 10_000_000


class Metered:
    """A meter that shows 3 W of the device's clock."""

    about = MeterInfo("bench", "all", error=0.02)

    def __init__(self, clock):
        self.clock = clock

    def read(self):
        return MeterReading(3 * self.clock())

    def rest(self):
        pass


def test_energy_is_what_the_meter_says_where_there_is_one(bundle, digits, clock):
    worker = replace(
        equip(bundle, digits, clock, Emulation.of("pi-4", slow=1)), account=Account(Metered(clock))
    )
    outcome = train_richest(worker, believed(0.6e9 / 0.062), Assignment((ClassMeans(),), 1, closes_at=60.0))
    assert outcome.energy_j == pytest.approx(3 * outcome.train_time_s)
    assert (outcome.energy.source, outcome.energy.uncertainty) == ("bench", pytest.approx(0.02))


def test_a_contribution_tells_what_its_energy_is_from(bundle, digits, clock):
    worker = equip(bundle, digits, clock)
    outcome = train_richest(worker, believed(1e12), Assignment((ClassMeans(),), 1, closes_at=60.0))
    offer = Offer(
        task="t", run="r", round=1, seed=0, deadline_s=1, remaining_s=1, kinds=(), bundle=BLOB,
        base=Base(checkpoint=(BLOB,), sha=BLOB.sha),
    )  # fmt: skip
    metrics = contribution_message(offer, outcome, b"x").metrics
    assert (metrics.energy_source, metrics.energy_off_percent) == ("", 50)
    measured = replace(outcome, energy=Energy(4.0, "rapl", 0.049))
    metrics = contribution_message(offer, measured, b"x").metrics
    assert (metrics.energy_mj, metrics.energy_source, metrics.energy_off_percent) == (4000, "rapl", 5)


def test_a_device_that_was_too_hopeful_steps_down_and_still_makes_the_deadline(
    bundle, digits, clock, every_kind
):
    """It believes in 57 GFLOP/s and pretends to a board of 0.16: its own clock tells in time."""
    worker = equip(bundle, digits, clock, Emulation.of("pi-zero-2w", slow=25))
    outcome = train_richest(worker, believed(57e9), Assignment(every_kind, 1, closes_at=20.0))
    assert outcome.gave_up
    assert outcome.gave_up[0].startswith("full given up: ")
    assert outcome.update is not None
    assert outcome.update.kind != "full"
    assert clock.now <= 20.0


def test_a_device_that_was_too_hopeful_sends_the_epochs_that_are_whole(bundle, digits, clock):
    """It believes to be twice as fast as it is: the plan says what was done, the correction what it took."""
    kinds = (FedAvg(epochs=4, reduced_epochs=1),)
    worker = equip(bundle, digits, clock, Emulation.of("pi-4", slow=1000))
    profile = believed(2 * 0.6e9 / 0.062 / 1000)
    whole_s = kinds[0].cost(worker.loads[MAIN], profile).compute_s
    outcome = train_richest(worker, profile, Assignment(kinds, 1, closes_at=1.2 * whole_s))
    assert outcome.gave_up == ()
    assert outcome.update.variant == outcome.plan.chosen.strategy.variant == "epochs=1"
    assert outcome.plan.chosen.cost.compute_s == pytest.approx(whole_s / 4)
    assert outcome.train_time_s < whole_s
    assert corrected(profile, outcome)["full"] == pytest.approx(0.7 + 0.3 * 2, rel=0.1)


def test_memory_refused_midway_steps_down(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock)
    real = worker.engine_guard.will_load

    def refuse_training(name, graph):
        if name.startswith("train."):
            raise OutOfMemory(f"{name} needs too much")
        real(name, graph)

    worker.engine_guard.will_load = refuse_training
    outcome = train_richest(worker, believed(1e12), Assignment(every_kind, 1, closes_at=60.0))
    assert outcome.update.kind == "few-shot"
    assert len(outcome.gave_up) == 4  # full, and the three shares of the entropy subset
    assert outcome.out_of_memory_kinds == ("full", *["entropy-subset"] * 3)


@pytest.mark.parametrize("error", [OutOfMemory("too much"), TensorError("it diverged")])
def test_what_was_given_up_holds_no_memory_while_the_next_is_done(bundle, digits, clock, error):
    """Full updates are given up after their first run, and class means run a graph of their own."""
    worker = equip(bundle, digits, clock)
    ran, engine_guard, model = [], worker.engine_guard, worker.models[MAIN]

    def outgrown(name, graph, samples, seconds):
        ran.append((name, {*model._sessions, *model._blocked}))
        if name == "train.all":
            raise error

    engine_guard.ran = outgrown
    kinds = (FedAvg(), ClassMeans())
    outcome = train_richest(worker, believed(1e12), Assignment(kinds, 1, closes_at=60.0))
    assert outcome.update.kind == "class-means"
    assert ran[0] == ("train.all", {"train.all"})
    assert all(graphs == {"forward"} for name, graphs in ran[1:])


def test_a_device_for_which_nothing_fits_sits_out_with_its_reasons(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock)
    outcome = train_richest(worker, believed(1e3), Assignment(every_kind, 1, closes_at=3.0))
    assert outcome.update is None
    assert len(outcome.reasons) == 7


def test_cheaper_leaves_the_forms_after_the_failed_one(every_kind):
    entropy = every_kind[1].variants()
    failed = type("Failed", (), {"strategy": entropy[1]})()
    assert cheaper(every_kind, failed) == (entropy[2], *every_kind[2:])


def test_what_a_process_died_at_is_not_tried_again_nor_what_is_dearer(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock)
    quarter = "entropy-subset 25%"
    deaths = (WorkerDeath("full", "killed", memory=True), WorkerDeath(quarter, "crashed", memory=False))
    assignment = Assignment(every_kind, 1, closes_at=3600.0, deaths=deaths)
    outcome = train_richest(worker, believed(1e12), assignment)
    forms = [form for kind in every_kind for form in kind.variants()]
    labels = [Candidate(form, None, ()).label for form in forms]
    left = labels[labels.index(quarter) + 1 :]
    assert [candidate.label for candidate in outcome.plan.candidates] == left
    assert outcome.gave_up == ("full given up: killed", f"{quarter} given up: crashed")
    assert outcome.out_of_memory_kinds == ("full",)


def test_after_a_death_at_something_unheard_of_nothing_is_tried(bundle, digits, clock, every_kind):
    assignment = Assignment(
        every_kind, 1, closes_at=3600.0, deaths=(WorkerDeath("another", "killed", memory=True),)
    )
    outcome = train_richest(equip(bundle, digits, clock), believed(1e12), assignment)
    assert (outcome.update, outcome.out_of_memory_kinds) == (None, ())
    assert outcome.gave_up == ("another given up: killed",)


def test_predictions_are_corrected_by_what_was_measured(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock, Emulation.of("pi-4", slow=1000))
    profile = believed(2 * 0.6e9 / 0.062 / 1000)  # it thinks it is twice as fast as it is
    outcome = train_richest(worker, profile, Assignment(every_kind, 1, closes_at=60_000.0))
    assert corrected(profile, outcome)["full"] == pytest.approx(0.7 + 0.3 * 2, rel=0.1)


def test_what_was_given_up_for_want_of_time_corrects_its_prediction_too(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock, Emulation.of("pi-zero-2w", slow=25))
    profile = believed(57e9)
    outcome = train_richest(worker, profile, Assignment(every_kind, 1, closes_at=20.0))
    assert outcome.timings[0].kind == "full"
    assert outcome.timings[0].seconds > 20.0
    assert corrected(profile, outcome)["full"] == 10.0  # as much as one round may change


def test_the_time_of_what_was_given_up_is_accounted_for(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock, Emulation.of("pi-zero-2w", slow=25))
    outcome = train_richest(worker, believed(57e9), Assignment(every_kind, 1, closes_at=20.0))
    assert outcome.gave_up
    assert outcome.train_time_s == pytest.approx(clock.now)
    assert outcome.energy_j == pytest.approx(5 * clock.now)


def test_an_engine_that_fails_midway_steps_down(bundle, digits, clock, every_kind):
    worker = equip(bundle, digits, clock)

    def fail(name, graph, samples, seconds):
        if name.startswith("train."):
            raise EngineError(f"{name}: bad allocation")

    worker.engine_guard.ran = fail
    outcome = train_richest(worker, believed(1e12), Assignment(every_kind, 1, closes_at=60.0))
    assert outcome.update.kind == "few-shot"
    assert outcome.gave_up[0] == "full given up: train.all: bad allocation"


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_training_that_diverged_is_not_sent(bundle, digits, clock):
    kinds = (FedAvg(lr=1e30, epochs=1), ClassMeans())
    outcome = train_richest(
        equip(bundle, digits, clock), believed(1e12), Assignment(kinds, 1, closes_at=60.0)
    )
    assert outcome.update.kind == "class-means"
    assert "non-finite" in outcome.gave_up[0]


def test_what_is_tried_is_told_before_it_is_with_the_room_that_it_leaves_on_the_way_up(
    bundle, digits, clock, every_kind
):
    decisions = []
    profile = believed(1e12)
    worker = equip(bundle, digits, clock)
    outcome = train_richest(worker, profile, Assignment(every_kind, 1, 60.0, decisions.append))
    [decision] = decisions
    assert decision.plan == outcome.plan
    assert decision.reasons == outcome.reasons
    bytes_up = outcome.plan.chosen.cost.bytes_up
    assert decision.room_bytes == pytest.approx(0.9 * 60.0 * profile.bandwidth.up - bytes_up)


def test_private_training_is_refused_as_soon_as_it_would_exceed_the_budget(bundle, digits, clock, tmp_path):
    """Planned for two rounds: the third is not begun, and the device sends what needs none of the budget."""
    (data := tmp_path / "data.npz").write_bytes(b"")
    np.savez(data, x=digits.x[:40], y=digits.y[:40])
    few = LocalData(digits.x[:40], digits.y[:40])
    settings = {"tunable": "head", "epochs": 1, "batch": 8, "terms": {"dp-sgd": {"rounds": 2}}}
    kinds = (registry.make("peft", settings), registry.make("class-means"))
    sent, spent = [], []
    for _ in range(3):
        worker = equip(bundle, few, clock, guard=PrivacyGuard.of(tmp_path, data))
        outcome = train_richest(worker, believed(57e9), Assignment(kinds, 1, closes_at=clock.now + 60))
        sent.append(outcome.update.kind)
        spent.append(outcome.epsilon)
    assert sent == ["peft", "peft", "class-means"]
    assert 0 < spent[0] < spent[1] <= 5 and isnan(spent[2])
    assert "epsilon would be" in outcome.reasons[0]


def test_an_owner_s_limit_bars_all_that_is_not_private(bundle, digits, clock, tmp_path):
    guard = PrivacyGuard.of(tmp_path, tmp_path, owner=PrivacyBudget(1.0, 1e-3))
    kinds = (
        registry.make("full"),
        registry.make("peft", {"tunable": "head", "terms": {"dp-sgd": {"epsilon": 5.0}}}),
    )
    outcome = train_richest(
        equip(bundle, digits, clock, guard=guard), believed(57e9), Assignment(kinds, 1, closes_at=60.0)
    )
    assert outcome.update is None
    assert outcome.reasons == (
        "full is not private, and the owner asks for epsilon 1 at delta 0.001",
        "peft asks for epsilon 5 at delta 0.001, the owner allows epsilon 1 at delta 0.001",
    )


def test_what_a_device_was_too_slow_for_once_is_tried_again_some_rounds_later():
    """A correction of 2 that bars a kind is 1.9, 1.81, ... in rounds in which only others are tried."""
    profile = replace(believed(1e9), corrections={"full": 2.0, "few-shot": 0.5})
    sat_out = WorkOutcome(
        UpdateChoice(None, (), StragglerVerdict(True, ())), None, timings=(Timing("few-shot", 1.0, 1.0),)
    )
    after = corrected(profile, sat_out)
    assert after["full"] == pytest.approx(1.9)
    assert after["few-shot"] == pytest.approx(0.7 * 0.5 + 0.3 * 0.5)
    again = corrected(replace(profile, corrections=after), replace(sat_out, timings=()))
    assert again["full"] == pytest.approx(1.81)
    assert again["few-shot"] == after["few-shot"]  # faster than predicted is no bar
