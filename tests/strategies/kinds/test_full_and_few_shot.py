"""FedFSC: thesis 002, chapter 4."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.models.training.heads import SoftmaxHead
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import shipped
from device_runtime.profiles.cost import activation_bytes
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.full_and_few_shot import FullAndFewShot
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.terms.proximal import FscProx
from device_runtime.strategies.training.workload import workload

SHORT = {"epochs": 2, "batch": 30}
FEW = FewShot(shots=3, epochs=2)


def effect(strategy, round_model, contributions):
    state = strategy.start(round_model)
    for sent in contributions:
        state = strategy.fold(state, sent, sent.num_examples)
    return strategy.finish(state, round_model)


def merged(round_model, effects):
    return merge(round_model, {str(place): outcome for place, outcome in enumerate(effects)})


def parts(digits):
    """Two devices of 40 and 80 digits."""
    return [LocalData(digits.x[where], digits.y[where]) for where in (slice(0, 40), slice(40, 120))]


def algorithm_1(model, devices, run):
    """A round of algorithm 1, t >= 2, written out: B and F, and what lines 14 to 16 make of them."""
    base = {name: value.copy() for name, value in model.weights.items()}
    full, heads, samples = [], [], [len(data) for data in devices]
    for place, data in enumerate(devices):
        trainer, rng = model.trainer("all"), run(f"pi-{place}").rng()
        steps = Sgd(0.1, 0.5, 1e-5).start(trainer.params.vector)
        for _ in range(2):
            order = rng.permutation(len(data))
            for at in range(0, len(data), 30):
                batch = order[at : at + 30]
                trainer.loss_and_grads(data.x[batch], data.y[batch])
                steps.step(trainer.params.vector, trainer.grads.vector)
        full.append(trainer.params.tensors())
        head, features = SoftmaxHead(model.manifest, base), model.features(data.x)
        draws = list(FEW.draws(data.y, run(f"pi-{place}").rng()))
        head.train(features, data.y, draws, Sgd(0.01, 0.9, 1e-3))
        heads.append(head.params.tensors())
    next_base = {
        n: sum(k * part[n] for k, part in zip(samples, full, strict=True)) / sum(samples) for n in full[0]
    }
    theta_fs = {name: sum(tensors[name] for tensors in heads) / len(heads) for name in heads[0]}
    return next_base, {**base, **theta_fs}


def test_a_round_is_algorithm_1_written_out(model, digits, round_model, run):
    strategy, devices = FullAndFewShot(**SHORT, few_shot=FEW, clip_norm=0.0), parts(digits)
    sent = [strategy.train(model, data, run(f"pi-{i}")) for i, data in enumerate(devices)]
    merging = merged(round_model, [effect(strategy, round_model, sent)])
    base, served = algorithm_1(model, devices, run)
    for name in base:
        np.testing.assert_allclose(merging.base[name], base[name], atol=2e-5)
        np.testing.assert_allclose(merging.served[name], served[name], atol=2e-6)
    assert [update.num_examples for update in sent] == [40, 80]


def test_both_updates_are_those_that_each_kind_makes_alone(model, digits, run):
    both = FullAndFewShot(**SHORT, few_shot=FEW).train(model, digits, run()).tensors
    alone = FedAvg(**SHORT).train(model, digits, run()).tensors
    head = FEW.train(model, digits, run()).tensors
    assert tensors.encode(both) == tensors.encode({**alone, **{f"few-shot/{n}": v for n, v in head.items()}})


def test_classifiers_are_averaged_plainly_over_those_of_both_kinds(round_model):
    """1 and 4 beside a full update, 7 from a straggler: theta_fs = 4, on the distributed extractor."""
    weights, head = round_model.weights, round_model.manifest.head
    names = (head.weight, head.bias)

    def both(value, samples):
        few = {f"few-shot/{name}": np.full_like(weights[name], value) for name in names}
        full = {name: weight + np.float32(value) for name, weight in weights.items()}
        return Update("full+few-shot", {**full, **few}, samples, 0.0)

    straggler = Update("few-shot", {n: np.full_like(weights[n], 7.0) for n in names}, 1000, 0.0)
    effects = [
        effect(FullAndFewShot(), round_model, [both(1.0, 10), both(4.0, 30)]),
        effect(FewShot(), round_model, [straggler]),
    ]
    for order in (effects, effects[::-1]):
        merging = merged(round_model, order)
        for name, weight in weights.items():
            np.testing.assert_allclose(merging.base[name], weight + 3.25, rtol=1e-6)  # (10 * 1 + 30 * 4) / 40
            expected = np.full_like(weight, 4.0) if name in names else weight
            np.testing.assert_array_equal(merging.served[name], expected)


def test_in_fedfsc_plus_only_the_stragglers_classifiers_are_served(model, digits, round_model, run):
    """Algorithm 2: those who can send full updates and nothing else."""
    able, straggler = parts(digits)
    full, few = FedAvg(**SHORT), FEW
    sent = few.train(model, straggler, run("slow"))
    effects = [effect(full, round_model, [full.train(model, able, run())]), effect(few, round_model, [sent])]
    merging = merged(round_model, effects)
    for name, weight in round_model.weights.items():
        np.testing.assert_allclose(merging.served[name], sent.tensors.get(name, weight), atol=1e-7)


def test_a_round_without_classifiers_serves_its_base(model, digits, round_model, run):
    strategy = FullAndFewShot(**SHORT, reduced_epochs=1)
    finished = strategy.variants()[0].train(model, parts(digits)[0], run())
    merging = merged(round_model, [effect(strategy, round_model, [finished])])
    assert merging.served is merging.base


class Slow:
    """A clock that ticks a second whenever progress is told."""

    def __init__(self, clock, deadline):
        def progress(done):
            clock.now += 1

        self.run = Run(77, "pi-1", clock, deadline, progress=progress)


def test_a_straggler_falls_back_by_its_own_clock_and_sends_both(model, digits, clock):
    """FedFSC+(baseline+): 10 epochs of 4 batches take 40 s of 30; it sends one, and a classifier."""
    strategy = FullAndFewShot(epochs=10, batch=60, reduced_epochs=1, few_shot=FEW)
    sent = strategy.variants()[0].train(model, digits, Slow(clock, 30.0).run)
    assert (clock.now, sent.variant) == (4.0, "epochs=1")
    planned = strategy.variants()[1].train(model, digits, Run(77, "pi-1", lambda: 0.0, 1.0))
    assert tensors.encode(sent.tensors) == tensors.encode(planned.tensors)
    assert sent.train_loss == planned.train_loss


def test_who_can_finish_sends_the_full_update_alone(model, digits, run):
    strategy = FullAndFewShot(**SHORT, reduced_epochs=1, few_shot=FEW)
    sent = strategy.variants()[0].train(model, digits, run())
    head = model.manifest.head
    assert sent.tensors[f"few-shot/{head.weight}"].shape == (0, head.features)
    assert sent.tensors[f"few-shot/{head.bias}"].shape == (0,)
    again = tensors.decode(tensors.encode(sent.tensors))
    tensors.check(again, strategy.expected(model.manifest))
    assert strategy.rejection_reason(again, 240) == ""


def test_without_time_for_a_classifier_the_full_update_still_comes(model, digits, clock):
    """The clock leaps beyond the deadline in the second epoch: the first is sent."""

    def progress(done):
        clock.now += 1 if clock.now < 5 else 100

    late = Run(77, "pi-1", clock, 39.0, progress=progress)
    falling = FullAndFewShot(epochs=4, batch=60, reduced_epochs=1, few_shot=FEW).variants()[0]
    sent = falling.train(model, digits, late)
    assert sent.variant == "epochs=1"
    assert len(sent.tensors["few-shot/head.weight"]) == 0


def test_a_device_with_one_class_sends_no_classifier(model, digits, run):
    ones = LocalData(digits.x[digits.y == 1], digits.y[digits.y == 1])
    sent = FullAndFewShot(epochs=1).train(model, ones, run())
    assert len(sent.tensors["few-shot/head.weight"]) == 0
    assert sent.num_examples == len(ones)


def test_a_classifier_of_some_rows_is_not_believed(round_model):
    weights = dict(round_model.weights)
    update = {**weights, "few-shot/head.weight": weights["head.weight"], "few-shot/head.bias": np.zeros(0)}
    assert (
        FullAndFewShot().rejection_reason(update, 5).startswith("few-shot/head.bias has 0 rows, expected 10")
    )
    update["few-shot/head.weight"] = weights["head.weight"][:3]
    assert "few-shot/head.weight has 3 rows" in FullAndFewShot().rejection_reason(update, 5)


def test_forms_are_those_of_the_full_update():
    strategy = FullAndFewShot(epochs=10, reduced_epochs=1)
    whole, reduced = strategy.variants()
    assert (whole.epochs, whole.variant, reduced.epochs, reduced.variant) == (10, "", 1, "epochs=1")
    assert (whole.variants(), reduced.variants()) == ((whole,), (reduced,))
    assert whole.stopped(0.35) == replace(reduced, epochs=3, reduced_epochs=3)
    assert whole.stopped(0.05) is None
    assert FullAndFewShot().stopped(0.5) is None


def test_the_classifier_costs_what_few_shot_costs_beside_the_full_update(bundle, digits):
    load, board = workload(bundle.manifest, digits.class_counts(10)), shipped("pi-4")
    strategy = FullAndFewShot(reduced_epochs=1, epochs=3)
    falling, reduced = strategy.variants()
    full, few = FedAvg(epochs=1).cost(load, board), FewShot().cost(load, board)
    assert reduced.cost(load, board).flops == full.flops + few.flops
    assert reduced.cost(load, board).bytes_up == full.bytes_up + few.bytes_up
    assert reduced.cost(load, board).bytes_down == full.bytes_down
    assert falling.cost(load, board).flops == FedAvg(epochs=3).cost(load, board).flops
    for form, alone in (
        (reduced, FedAvg(epochs=1)),
        (falling, FedAvg(epochs=3, reduced_epochs=1).variants()[0]),
    ):
        more = form.cost(load, board).peak_memory_bytes - alone.cost(load, board).peak_memory_bytes
        assert more == activation_bytes(load, "forward")  # it stays open
    one_class = workload(bundle.manifest, (0, 9) + (0,) * 8)
    assert FullAndFewShot(epochs=1).cost(one_class, board) == FedAvg(epochs=1).cost(one_class, board)


def test_fscprox_draws_classifiers_to_the_last_few_shot_learnt_one(model, digits, round_model, run):
    """Equation 4.3, from the aggregator to the step of a device: one step of g + 2 mu (theta - theta_fs)."""
    strategy = FullAndFewShot(
        epochs=1, batch=240, momentum=0.0, weight_decay=0.0, terms=(FscProx(0.7),), few_shot=FEW
    )
    first = strategy.train(model, digits, run())
    merging = merged(round_model, [effect(strategy, round_model, [first])])
    aside = merging.carried.aside
    assert aside.keys() == {"few-shot/head.weight", "few-shot/head.bias"}
    second = strategy.train(model, digits, replace(run(), aside=aside))
    trainer = model.trainer("all")
    trainer.loss_and_grads(digits.x, digits.y)
    for name, slope in trainer.grads.views.items():
        weight = model.weights[name]
        theta_fs = aside.get(f"few-shot/{name}", weight)
        expected = weight - 0.1 * (slope + 2 * 0.7 * (weight - theta_fs))
        np.testing.assert_allclose(second.tensors[name], expected, atol=2e-6)


@pytest.mark.parametrize("terms", [(), (FscProx(0.7, "base"),)])
def test_the_classifier_is_sent_to_devices_only_where_they_are_drawn_to_it(
    model, digits, round_model: RoundModel, run, terms
):
    strategy = FullAndFewShot(**SHORT, few_shot=FEW, terms=terms)
    sent = strategy.train(model, parts(digits)[0], run())
    assert merged(round_model, [effect(strategy, round_model, [sent])]).carried.aside == {}


@pytest.mark.parametrize(
    "settings", [{"few_shot": FewShot(join_base=True)}, {"few_shot": FewShot(send_mean=True)}, {"epochs": 0}]
)
def test_settings_that_mean_nothing_here_are_refused(settings):
    with pytest.raises(ValueError, match=r"for few-shot alone|epochs is 0"):
        FullAndFewShot(**settings)
