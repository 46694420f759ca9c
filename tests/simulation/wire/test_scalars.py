"""Rounds of scalars alone, on simulated wires: who was away, or late, ends with the aggregator's bits."""

import hashlib
from collections import Counter

import numpy as np
import pytest

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.delivery.cache import ModelCache
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.profiles.device import Emulation
from tests.simulation.wire.host import VirtualAggregator
from tests.simulation.wire.run import (
    AggregatorKilled,
    Crash,
    LinkLost,
    WireCourse,
    WireMember,
    run_on_wire,
)

DEVICES, SAMPLES, ROUNDS = 10, 8, 12
WEIGHTS_BYTES = 250_000
"""Fewer than those of the bundle."""


def digest(weights):
    return hashlib.sha256(tensors.encode(weights)).hexdigest()


@pytest.fixture
def fleet(split):
    """Slow boards alike, each with digits of its own, 20 ms from the broker."""
    profile = Emulation.of("pi-5", 100.0).profile
    parts = np.split(np.arange(DEVICES * SAMPLES), DEVICES)
    return [
        WireMember(f"d{i}", profile, split.train.x[part], split.train.y[part], 0.02)
        for i, part in enumerate(parts)
    ]


def task(**settings):
    kind = KindSettings(name="zeroth-order", settings={"lr": 0.01})
    fields = {"bundle": "digits-wrn-10-1", "rounds": ROUNDS, "round_deadline_s": 5.0, "min_devices": DEVICES}
    return Task(**{**fields, "kinds": (kind,), **settings})


@pytest.fixture
def caught_up(monkeypatch):
    """At the end of a run every device takes what it lacks of the log: digests, bytes fetched, and steps."""
    by_name, fetched = {}, Counter()
    begin, close = ModelCache.__init__, VirtualAggregator.close

    def init(self, folder, *limits):
        begin(self, folder, *limits)
        by_name[folder.name] = self

    def last(self):
        rounds = self._service.rounds
        base, manifest = self._service.offers.farewell().base, rounds.manifest
        for name, holdings in by_name.items():
            for blob in holdings.missing(base):
                holdings.blobs.put(rounds.store.models.get(blob))
                fetched[name] += blob.size
            ends[name] = digest(holdings.base(base, manifest))
        steps.append(base.steps)
        close(self)

    ends, steps = {}, []
    monkeypatch.setattr(ModelCache, "__init__", init)
    monkeypatch.setattr(VirtualAggregator, "close", last)
    return ends, fetched, steps


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [10, 3, 1], ids=["all take part", "three of ten", "one of ten"])
def test_whoever_takes_part_when_all_end_with_the_same_bits_and_no_weights_travel(fleet, caught_up, cohort):
    ends, fetched, steps = caught_up
    settings = {} if cohort == DEVICES else {"devices_per_round": cohort}
    finished = run_on_wire(task(**settings), fleet, WireCourse(seed=1, until_s=1000))
    part = Counter(record.device for _, record in finished.contributions)
    assert sum(part.values()) == ROUNDS * cohort
    assert len(ends) == DEVICES
    assert set(ends.values()) == {digest(finished.weights)}
    assert steps == [ROUNDS]
    assert sum(fetched.values()) < WEIGHTS_BYTES
    sent = sum(passed.size for passed in finished.log if "/block/" in passed.topic)
    assert sent < WEIGHTS_BYTES, "weights travelled"


@pytest.mark.slow
def test_scalars_made_late_by_a_lost_link_give_way_to_newer_ones_and_all_hold_the_same_bits(fleet, caught_up):
    """One device's network goes while it computes round 3, and is back when round 5 is open."""
    ends, _, steps = caught_up
    counting = task(rounds=5, late="count")
    undisturbed = run_on_wire(counting, fleet, WireCourse(seed=1, until_s=1000))
    came_s = next(
        at for at, update in undisturbed.contributions if (update.device, update.round) == ("d4", 3)
    )
    loss = LinkLost(came_s - 0.021, came_s + 5.5, "d4")
    finished = run_on_wire(counting, fleet, WireCourse(seed=1, faults=(loss,), until_s=1000))
    counted = Counter((update.device, update.round) for _, update in finished.contributions)
    assert [counted["d4", number] for number in range(1, 6)] == [1, 1, 0, 0, 2]
    assert steps == [5, 5]  # both are accepted, and the newer one counts
    assert set(ends.values()) == {digest(finished.weights)}


@pytest.mark.slow
def test_what_is_said_twice_or_to_an_aggregator_that_falls_changes_no_bit(fleet, caught_up):
    """Crashed devices send what is on their disks again; a receipt that was lost is given again."""
    ends, _, _ = caught_up
    awaited = task(rounds=4, min_contributions=DEVICES)
    undisturbed = run_on_wire(awaited, fleet, WireCourse(seed=1, until_s=1000))
    came_s = {(update.device, update.round): at for at, update in undisturbed.contributions}
    faults = (
        Crash(came_s["d1", 2] + 0.001, came_s["d1", 2] + 0.3, "d1"),  # its receipt is on the way
        Crash(came_s["d2", 2] - 0.001, came_s["d2", 2] + 0.2, "d2"),  # its scalars are
    )
    disturbed = run_on_wire(awaited, fleet, WireCourse(seed=1, faults=faults, until_s=1000))
    assert digest(disturbed.weights) == digest(undisturbed.weights)
    killed = AggregatorKilled(came_s["d5", 3] + 0.001, came_s["d5", 3] + 2.0)
    finished = run_on_wire(awaited, fleet, WireCourse(seed=1, faults=(killed,), until_s=1000))
    assert digest(finished.weights) == digest(undisturbed.weights)
    assert set(ends.values()) == {digest(undisturbed.weights)}


@pytest.mark.slow
def test_a_scale_of_features_that_class_means_set_is_in_the_base_that_scalars_begin_with(
    fleet, caught_up, tmp_path
):
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    spec = ExportSpec(
        "scaled", InputSpec((1, 8, 8), 1 / 16), tuple("0123456789"), sets={"head": {}}, scaled=True
    )
    module = build("mlp", {"inputs": 64, "hidden": 16, "depth": 1, "classes": 10})
    export(module, spec, tmp_path / "scaled")
    means = KindSettings(name="class-means", until_round=1)
    scalars = KindSettings(name="zeroth-order", from_round=2, settings={"tunable": "head", "lr": 0.01})
    scaled = task(bundle=str(tmp_path / "scaled"), rounds=5, kinds=(means, scalars))
    finished = run_on_wire(scaled, fleet, WireCourse(seed=1, until_s=1000))
    ends, _, steps = caught_up
    assert steps == [4]
    assert set(ends.values()) == {digest(finished.weights)}
    scale = finished.weights["head.scale"]
    assert scale.shape == (16,)
    assert scale.max() > 1.2 * scale.min()
