"""Without a rule, what updates may do is bounded by the lengths of others; honest ones stay bit for bit."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import FEW_SHOT, Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.merging.server_optimizer import ServerOptimizer
from device_runtime.strategies.robust import Robust, Screen, lengths
from device_runtime.strategies.robust.lengths import (
    MEMORY,
    OTHERS,
    SCALARS,
    TIMES,
    Compared,
    LengthBounds,
    change_length,
)


def moved(model, kind, length, direction=0, variant=""):
    """An update of a kind whose change of the base is this long, along its own direction."""
    rng, form = np.random.default_rng(direction), variant_named(registry.make(kind), variant)
    change = {
        spec.name: rng.normal(size=spec.shape)
        for spec in form.expected(model.manifest)
        if spec.name in model.weights
    }
    whole = np.sqrt(sum(np.square(value).sum() for value in change.values()))
    content = {
        name: (model.weights[name] + length / whole * value).astype(np.float32)
        for name, value in change.items()
    }
    return Update(kind, content, 10, 0.5, variant)


def lengths_of(model, updates):
    return [
        float(
            np.sqrt(
                sum(
                    np.square(update.tensors[n].astype(float) - model.weights[n]).sum()
                    for n in update.tensors
                )
            )
        )
        for update in updates
    ]


class Seen:
    """Which updates reach the folding, one of each that is sent."""

    def __init__(self, model, *kinds, carried=None, settings=None, optimizer=None):
        self.kinds = {name: registry.make(name, settings) for name in kinds}
        self.folding = Folding(self.kinds, model, carried or CarriedState(), optimizer or ServerOptimizer())
        self.updates, self.weights, self._add = [], [], self.folding.add
        self.folding.add = self.add

    def add(self, update, weight):
        self.updates.append(update)
        self.weights.append(weight)
        self._add(update, weight)

    def merge(self, sent, again=False):
        with Screen(self.folding, Robust()) as screen:
            for place, update in enumerate(sent):
                screen.add(update, 10.0, f"pi-{place}", (lambda update_=update: update_) if again else None)
            self.merged, self.note = screen.merged()
        return self


def test_an_update_ten_thousand_times_as_long_moves_the_base_no_further_than_three_others(round_model):
    sent = [moved(round_model, "full", 1.0, i) for i in range(9)] + [moved(round_model, "full", 1e4, 9)]
    watch = Seen(round_model, "full").merge(sent)
    assert lengths_of(round_model, watch.updates) == pytest.approx([1.0] * 9 + [TIMES], rel=1e-3)
    assert "shortened: pi-9 (full), from at most 1e+04 to 3" in watch.note


@pytest.mark.parametrize("again", [False, True])
def test_honest_updates_count_bit_for_bit_and_in_their_order(round_model, again):
    """The longest is 2.1 times the upper quartile, as of a device with 13 times the samples."""
    lengths = [0.2, 1.0, 0.4, 2.1, 0.9, 1.0, 1.0, 0.05, 1.0, 0.0]
    sent = [moved(round_model, "full", length, i) for i, length in enumerate(lengths)]
    sent += [moved(round_model, "few-shot", 0.3, 20), moved(round_model, "entropy-subset", 2.0, 21, "50%")]
    kinds = ("full", "few-shot", "entropy-subset")
    plain = Folding({name: registry.make(name) for name in kinds}, round_model)
    for update in sent:
        plain.add(update, 10.0)
    expected, _ = plain.merged()
    watch = Seen(round_model, *kinds).merge(sent, again)
    assert watch.note == ""
    for name, value in expected.base.items():
        assert watch.merged.base[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("devices", [3, 4])
def test_the_longest_of_three_or_four_is_no_measure_of_itself(round_model, devices):
    sent = [moved(round_model, "full", 1.0, i) for i in range(devices - 1)] + [
        moved(round_model, "full", 1e4, 9)
    ]
    assert max(lengths_of(round_model, Seen(round_model, "full").merge(sent).updates)) < 7


def test_a_liar_alone_in_a_kind_is_measured_by_all_updates_of_the_round(round_model):
    sent = [moved(round_model, "full", 1.0, i) for i in range(6)] + [moved(round_model, "few-shot", 1e6, 9)]
    watch = Seen(round_model, "full", "few-shot").merge(sent)
    assert lengths_of(round_model, watch.updates)[-1] == pytest.approx(OTHERS, rel=1e-3)


def test_where_merges_are_of_one_update_earlier_ones_are_the_measure(round_model):
    carried, lengths = CarriedState(), []
    for number, length in enumerate((1.0, 1.2, 0.9, 1e4, 1.0, 1e4, 2.0)):
        watch = Seen(round_model, "full", carried=carried).merge([moved(round_model, "full", length, number)])
        carried = watch.merged.carried
        lengths += lengths_of(round_model, watch.updates)
    assert max(lengths) < 4
    assert lengths[-1] == pytest.approx(2.0, rel=1e-3)
    assert len(carried.memory[MEMORY]) == 1


def test_updates_of_more_epochs_may_be_longer(round_model):
    """Nine devices had time for one epoch; the tenth trained ten, and is six times as far."""
    settings = {"graded": True, "epochs": 10}
    sent = [moved(round_model, "full", 1.0, i) for i in range(9)]
    sent = [Update(update.kind, update.tensors, 10, 0.5, "epochs=1") for update in sent]
    watch = Seen(round_model, "full", settings=settings).merge([*sent, moved(round_model, "full", 6.0, 9)])
    assert watch.note == ""
    liar = Update("full", moved(round_model, "full", 6.0, 9).tensors, 10, 0.5, "epochs=1")
    assert "pi-9 (full)" in Seen(round_model, "full", settings=settings).merge([*sent, liar]).note


def test_scalars_of_absolute_size_are_bounded_by_those_of_others(round_model):
    def scalars(size):
        return Update("zeroth-order", {"g": np.full(2, size, np.float32)}, 10, 0.5)

    watch = Seen(round_model, "zeroth-order").merge([scalars(-1.0), *[scalars(1.0)] * 8, scalars(1e6)])
    assert [float(update.tensors["g"][0]) for update in watch.updates] == [-1.0, *[1.0] * 8, SCALARS]
    assert Seen(round_model, "zeroth-order").merge([scalars(1.0)] * 9 + [scalars(4.2)]).note == ""


def test_a_classifier_beside_a_full_update_has_a_length_of_its_own(round_model):
    """Otherwise it could be as long as three full updates, which are longer than classifiers."""
    head = round_model.manifest.names("head")

    def both(length, few):
        full, classifier = (
            moved(round_model, kind, size) for kind, size in (("full", length), ("few-shot", few))
        )
        beside = {FEW_SHOT + name: classifier.tensors[name] for name in head}
        return Update("full+few-shot", {**full.tensors, **beside}, 10, 0.5)

    watch = Seen(round_model, "full+few-shot").merge([both(100.0, 1.0)] * 9 + [both(100.0, 200.0)])
    far = watch.updates[-1].tensors
    change = np.sqrt(sum(np.square(far[FEW_SHOT + name] - round_model.weights[name]).sum() for name in head))
    assert change == pytest.approx(TIMES, rel=1e-3)
    assert lengths_of(
        round_model, [Update("full", {n: far[n] for n in round_model.manifest.names("all")}, 1, 1)]
    ) == pytest.approx([100.0], rel=1e-3)


def test_rows_of_prototypes_and_maps_have_a_length_whatever_their_number(round_model):
    """A device of twelve maps sends as long ones as a device of three."""
    compared = Compared(registry.make("prototypes"), "", round_model.weights)
    for rows in (3, 12):
        content = {"maps": np.full((rows, 4, 2), 0.5, np.float32)}
        [(group, starts)] = compared.parts(content).items()
        assert (group.part, group.values) == ("maps", 8)
        assert change_length(content, starts) == pytest.approx(np.sqrt(8 * 0.25))


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi", "fedavgm"])
def test_moments_of_a_server_optimiser_remember_little_of_one_false_round(round_model, name):
    """Their second moments after a lie are at most as after three honest rounds; before, 1e7 times that."""

    def moment(lie):
        honest = [moved(round_model, "full", 1.0, i % 3) for i in range(9)]
        sent = [*honest, moved(round_model, "full", lie, 1)]
        optimizer = ServerOptimizer(name)
        merged = Seen(round_model, "full", optimizer=optimizer).merge(sent).merged
        memory = merged.carried.memory["server-optimizer"]
        return max(float(np.abs(value).max()) for value in memory.values())

    assert moment(1e4) < 3 * moment(1.0)


def test_a_false_update_makes_the_step_of_fedexp_no_longer_than_the_honest_ones_are(round_model):
    """Its step grows with the lengths of updates, which are bounded before."""

    def step(lie):
        sent = [*(moved(round_model, "full", 1.0, i) for i in range(9)), moved(round_model, "full", lie, 9)]
        merged = Seen(round_model, "full", optimizer=ServerOptimizer("fedexp")).merge(sent).merged
        return change_length(merged.base, round_model.weights)

    assert step(1e4) < 3 * step(1.0)


def test_an_update_that_is_shortened_weighs_no_more_than_others(round_model):
    sent = [moved(round_model, "full", 1.0, i) for i in range(9)] + [moved(round_model, "full", 1e4, 9)]
    watch = Seen(round_model, "full")
    with Screen(watch.folding, Robust()) as screen:
        for place, update in enumerate(sent):
            screen.add(update, 30.0 if place == 9 else 10.0, f"pi-{place}")
        screen.merged()
    assert watch.weights == [10.0] * 10


def test_a_device_that_says_nothing_new_does_not_make_others_look_long(round_model):
    """Devices that send the base back are no measure: one that has learnt counts in full."""
    sent = [moved(round_model, "full", 0.0, i) for i in range(5)] + [moved(round_model, "full", 1.0, 9)]
    assert Seen(round_model, "full").merge(sent).note == ""


def test_an_own_kind_that_fails_at_an_update_that_waited_costs_this_update(round_model):
    @dataclass(frozen=True)
    class Fragile(FedAvg):
        name: ClassVar[str] = "fragile-lengths"

        def fold(self, state, update, weight):
            return 1 / 0 if update.device == "pi-1" else super().fold(state, update, weight)

    kind = Fragile()
    with Screen(Folding({kind.name: kind}, round_model), Robust()) as screen:
        for place in range(3):
            screen.add(replace(moved(round_model, "full", 1.0), kind=kind.name), 10.0, f"pi-{place}")
        merged, note = screen.merged()
    assert "ZeroDivisionError" in screen.failures["pi-1", kind.name]
    assert "pi-1 (fragile-lengths) is left out" in note
    assert lengths_of(round_model, [Update("full", merged.base, 1, 1)]) == pytest.approx([1.0], rel=1e-3)


@pytest.mark.parametrize("in_memory", [0, 100, 1 << 20])
def test_an_update_in_memory_or_in_a_file_comes_back_bit_for_bit(round_model, in_memory, monkeypatch):
    """Of any dtype, with tensors without rows, and writable, as one that was decoded."""
    content = {"b": np.arange(6, dtype=np.int64).reshape(2, 3)[:, ::-1], "a": np.zeros((0, 5), np.float32)}
    content["c"] = np.float16([[1.5]])
    monkeypatch.setattr(lengths, "IN_MEMORY", in_memory)
    bounds = LengthBounds({}, None)
    compared = Compared(registry.make("full"), "", round_model.weights)
    for _ in range(2):
        bounds.add(Update("full", content, 3, 0.5, device="pi-1"), 1.0, compared, None)
    for entry in bounds:
        read = entry.read()
        assert (read.device, list(read.tensors)) == ("pi-1", list(content))
        for name, value in content.items():
            assert read.tensors[name].dtype == value.dtype
            np.testing.assert_array_equal(read.tensors[name], value)
            assert read.tensors[name].flags.writeable
    bounds.close()
