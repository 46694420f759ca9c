from collections import Counter

import numpy as np
import pytest

from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.device_half import OutOfTime, Run, Update
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.training.workload import workload


def named(*effects):
    """Of kinds by some names, in this order."""
    return {str(place): effect for place, effect in enumerate(effects)}


def heads(manifest, *values):
    """Few-shot contributions whose classifiers are constant, with 10, 20, ... samples."""
    shape = (len(manifest.labels), manifest.head.features)
    return [
        Update(
            "few-shot",
            {
                manifest.head.weight: np.full(shape, value, np.float32),
                manifest.head.bias: np.full(shape[:1], value, np.float32),
            },
            10 * (index + 1),
            0.0,
        )
        for index, value in enumerate(values)
    ]


def folded(strategy, round_model, contributions):
    state = strategy.start(round_model)
    for contribution in contributions:
        state = strategy.fold(state, contribution, contribution.num_examples)
    return strategy.finish(state, round_model)


def test_the_served_model_is_the_mean_classifier_on_the_distributed_extractor(round_model):
    """{theta_fs^t, phi^t}: thesis 002, chapter 4. The base is that of the full updates alone."""
    manifest = round_model.manifest
    full = FedAvg()
    moved = {name: value + 1 for name, value in round_model.weights.items()}
    effects = [
        folded(full, round_model, [Update("full", moved, 100, 0.0)]),
        folded(FewShot(), round_model, heads(manifest, 1.0, 4.0)),
    ]
    merged = merge(round_model, named(*effects))
    for name, distributed in round_model.weights.items():
        np.testing.assert_allclose(merged.base[name], distributed + 1, atol=1e-6)
        if name in (manifest.head.weight, manifest.head.bias):
            assert (merged.served[name] == 2.5).all()  # the plain mean of 1 and 4, not by samples
        else:
            np.testing.assert_array_equal(merged.served[name], distributed)


def test_few_shot_alone_leaves_the_base_as_it_was(round_model):
    merged = merge(round_model, named(folded(FewShot(), round_model, heads(round_model.manifest, 1.0))))
    assert all(np.array_equal(merged.base[n], v) for n, v in round_model.weights.items())


def test_joined_to_the_base_the_classifiers_are_averaged_by_samples_with_the_others(round_model):
    manifest = round_model.manifest
    zero = {name: np.zeros_like(value) for name, value in round_model.weights.items()}
    effects = [
        folded(FedAvg(), round_model, [Update("full", zero, 70, 0.0)]),
        folded(FewShot(join_base=True), round_model, heads(manifest, 1.0, 4.0)),
    ]
    merged = merge(round_model, named(*effects))
    assert np.allclose(merged.base[manifest.head.weight], (70 * 0 + 10 * 1 + 20 * 4) / 100)
    assert merged.served is merged.base


def test_each_epoch_draws_anew_ten_of_each_class_and_all_of_a_rarer_one():
    y = np.array([0] * 30 + [3] * 12 + [7] * 4)
    batches = list(FewShot(epochs=2).draws(y, np.random.default_rng(0)))
    assert {len(batch) for batch in batches} == {4}
    epochs = [np.concatenate(batches[:6]), np.concatenate(batches[6:])]
    for drawn in epochs:
        assert Counter(y[drawn].tolist()) == {0: 10, 3: 10, 7: 4}
        assert len(set(drawn.tolist())) == 24
    assert set(epochs[0].tolist()) != set(epochs[1].tolist())


def test_only_the_classifier_travels_and_its_loss_falls(model, digits, run, partitions):
    data = partitions["unequal"][2]
    sent = FewShot().train(model, data, run())
    assert set(sent.tensors) == {model.manifest.head.weight, model.manifest.head.bias}
    before = model.probe("head").loss(data.x, data.y)
    model.load(sent.tensors)
    assert model.probe("head").loss(data.x, data.y) < before


def test_the_same_seed_and_device_give_the_same_classifier(model, digits, run):
    first, second, other = (FewShot().train(model, digits, run(d)) for d in ("a", "a", "b"))
    name = model.manifest.head.weight
    np.testing.assert_array_equal(first.tensors[name], second.tensors[name])
    assert not np.array_equal(first.tensors[name], other.tensors[name])


def test_one_class_alone_is_no_classifier(bundle):
    from device_runtime.strategies.training.workload import workload

    assert "2 classes" in FewShot().infeasible_reason(workload(bundle.manifest, (50,) + (0,) * 9))
    assert FewShot().infeasible_reason(workload(bundle.manifest, (50, 1) + (0,) * 8)) == ""


def test_the_classifier_s_own_steps_are_paced_against_the_clock(model, digits, clock):
    """100 samples an epoch in batches of 4 that take a second each: 250 s, which shows after one of them."""

    def ticking(done: float) -> None:
        clock.now += 1

    with pytest.raises(OutOfTime):
        FewShot().train(model, digits, Run(1, "slow", clock, upload_at=60.0, progress=ticking))
    assert clock.now == 2  # one for the features


def test_the_cost_of_many_epochs_is_not_that_of_one(bundle, digits):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e6), Bandwidth(1e9, 1e9), Power(1, 2))
    load = workload(bundle.manifest, digits.class_counts(10))
    short, long = (FewShot(epochs=n).cost(load, profile).compute_s for n in (1, 1001))
    assert long - short == pytest.approx(1000 * 3 * 100 * load.head_flops / 1e6)
