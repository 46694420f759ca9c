"""FedSplit: the maps a device sends are of its own samples, and a new upper part learns from them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.errors import BundleError
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.profiles.cost import MissingGraph
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.representatives import COUNTS, MAPS, MapPool, Representatives
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.terms.proximal import FedProx
from device_runtime.strategies.training.workload import workload

MID = Representatives(level="mid", clusters=3, components=10, epochs=1, server_epochs=3)


@pytest.fixture(scope="module")
def cnn(bundle, tmp_path_factory) -> Bundle:
    """Two convolutions for the digits, 8 and 16 maps, and graphs above each level."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(5)
    module = build("cnn", {"in_channels": 1, "size": 8, "width": 0.25})
    spec = ExportSpec(
        "cnn", bundle.manifest.input, bundle.manifest.labels, sets={"all": {}, "up": {}, "head": {}},
        features=("mid", "up"), objectives=("train", "above-mid", "above-up"),
    )  # fmt: skip
    return export(module, spec, tmp_path_factory.mktemp("cnn") / "bundle")


@dataclass
class Tools:
    """What the aggregator has: the main model alone."""

    opened: OnnxModel
    generic: None = None

    def model(self, member=""):
        return self.opened

    def manifest(self, member=""):
        return self.opened.manifest


@pytest.fixture
def device(cnn) -> OnnxModel:
    return OnnxModel(cnn)


@pytest.fixture
def distributed(cnn) -> RoundModel:
    return RoundModel(cnn.manifest, cnn.weights(), round=2, seed=11, tools=Tools(OnnxModel(cnn)))


def folded(strategy, model, *sent):
    state = strategy.start(model)
    for update in sent:
        state = strategy.fold(state, update, update.num_examples)
    return strategy.finish(state, model)


def part(data, chosen):
    return LocalData(data.x[chosen], data.y[chosen])


@pytest.mark.slow
def test_what_is_sent_beside_the_update_are_maps_of_own_samples_of_each_class(device, digits, run):
    data = part(digits, np.isin(digits.y, (2, 7)))
    sent = MID.train(device, data, run()).tensors
    assert sent[COUNTS].tolist() == [0, 0, 3, 0, 0, 0, 0, 3, 0, 0]
    of_two, of_seven = (device.level_features(data.x[data.y == label], "mid") for label in (2, 7))
    for feature_map, own in zip(sent[MAPS], [of_two] * 3 + [of_seven] * 3, strict=True):
        assert (own == feature_map).all(axis=(1, 2, 3)).any()
    assert len(np.unique(sent[MAPS].reshape(6, -1), axis=0)) == 6


def test_maps_are_of_the_distributed_model_and_the_update_is_a_full_one(device, digits, run):
    before = device.level_features(digits.x, "up")
    kind = Representatives(level="up", select="all", epochs=2)
    sent = kind.train(device, digits, run())
    np.testing.assert_array_equal(sent.tensors[MAPS], before[np.argsort(digits.y, kind="stable")])
    full = FedAvg(epochs=2, batch=50).train(device, digits, run())
    for name, value in full.tensors.items():
        assert value.tobytes() == sent.tensors[name].tobytes(), name


@pytest.mark.parametrize("select, rows", [("clusters", 1), ("all", 1)])
def test_a_device_with_one_sample_sends_its_map(select, rows, device, digits, run):
    sent = replace(MID, select=select).train(device, part(digits, [4]), run())
    assert (len(sent.tensors[MAPS]), sent.tensors[COUNTS].sum()) == (rows, 1)
    np.testing.assert_array_equal(sent.tensors[MAPS], device.level_features(digits.x[[4]], "mid"))


def test_all_of_a_class_with_fewer_samples_than_clusters_and_one_where_all_are_the_same(device, digits, run):
    few = np.flatnonzero(digits.y == 3)[:5]
    same = LocalData(
        np.concatenate([digits.x[few], np.repeat(digits.x[:1], 40, axis=0)]), np.repeat([3, 0], [5, 40])
    )
    sent = replace(MID, clusters=20).train(device, same, run()).tensors
    assert sent[COUNTS].tolist() == [1, 0, 0, 5, 0, 0, 0, 0, 0, 0]


def test_a_contribution_is_what_is_expected_and_costs_what_is_predicted(cnn, device, digits, run):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    load = workload(cnn.manifest, digits.class_counts(10))
    costs = {}
    for select in ("clusters", "all"):
        kind = replace(MID, select=select)
        sent = kind.train(device, digits, run())
        tensors.check(sent.tensors, kind.expected(cnn.manifest))
        assert kind.rejection_reason(sent.tensors, sent.num_examples) == ""
        costs[select] = kind.cost(load, profile)
        assert costs[select].bytes_up == pytest.approx(len(tensors.encode(sent.tensors)) + 120, rel=0.1)
    assert costs["clusters"].bytes_up < costs["all"].bytes_up
    assert costs["clusters"].flops > costs["all"].flops > FedAvg(epochs=1, batch=50).cost(load, profile).flops


def test_a_bundle_without_maps_of_the_level_is_not_affordable_and_refused_by_the_aggregator(cnn, digits):
    kind = Representatives(level="low")
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    with pytest.raises(MissingGraph, match="needs graph features.low"):
        kind.cost(workload(cnn.manifest, digits.class_counts(10)), profile)
    with pytest.raises(BundleError, match="bundle cnn has no graph features.low: export it with"):
        kind.start(RoundModel(cnn.manifest, cnn.weights(), 1, 1))


def test_more_samples_than_may_be_sent_do_not_suit_sending_all(cnn, digits):
    load = workload(cnn.manifest, digits.class_counts(10))
    kind = Representatives(select="all", most_maps=100)
    assert kind.infeasible_reason(load) == "sends at most 100 maps, there are 240 samples"
    assert replace(kind, select="clusters").infeasible_reason(load) == ""


def test_counts_that_are_not_those_of_the_maps_are_doubted(device, digits, run):
    sent = dict(MID.train(device, digits, run()).tensors)
    assert "29 maps, but the counts by class are 3, 3" in MID.rejection_reason(
        {**sent, MAPS: sent[MAPS][1:]}, 240
    )
    counts = sent[COUNTS].copy()
    counts[:2] += [4, -4]
    assert "but the counts by class are 7, -1" in MID.rejection_reason({**sent, COUNTS: counts}, 240)
    assert MID.rejection_reason(sent, 20) == "30 maps, but only 20 samples"


def test_the_served_model_is_a_new_upper_part_on_the_distributed_extractor(
    cnn, device, distributed, digits, run
):
    """And the base goes on by FedAvg, to the bit."""
    halves = [part(digits, slice(0, 120)), part(digits, slice(120, 240))]
    bases = {}
    for kind in (MID, FedAvg(epochs=1, batch=50)):
        sent = [kind.train(device, data, run(str(i))) for i, data in enumerate(halves)]
        merged = merge(distributed, {kind.name: folded(kind, distributed, *sent)})
        bases[kind.name] = tensors.encode(merged.base)
        if kind is MID:
            upper = set(cnn.manifest.names("up"))
            for name, value in cnn.weights().items():
                assert np.array_equal(merged.served[name], value) == (name not in upper), name
    assert bases["full"] == bases["representatives"]


def test_the_upper_part_starts_afresh_and_the_same_seed_gives_the_same(device, distributed, digits, run):
    sent = MID.train(device, digits, run())
    first = folded(MID, distributed, sent).served
    other = {name: value + 1 for name, value in distributed.weights.items()}
    again = folded(MID, replace(distributed, weights=other), sent).served
    elsewhere = folded(MID, replace(distributed, seed=12), sent).served
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes(), name
    assert not np.array_equal(first["head.weight"], elsewhere["head.weight"])


def test_every_round_starts_the_upper_part_from_the_values_drawn_in_the_first(
    device, distributed, digits, run
):
    """Algorithm 5, line 1: theta_ini is given once. A learning rate of next to 0 shows it."""
    still = replace(MID, server_lr=1e-30)
    sent = still.train(device, digits, run())
    first = folded(still, distributed, sent)
    assert set(first.memory) == set(distributed.manifest.names("up"))
    later = replace(distributed, round=3, seed=12, memory=first.memory)
    second = folded(still, later, sent)
    for name, value in first.memory.items():
        assert np.array_equal(first.served[name], value), name
        assert np.array_equal(second.served[name], value), name
        assert np.array_equal(second.memory[name], value), name
    fresh = folded(still, replace(later, memory={}), sent).served
    assert not np.array_equal(fresh["head.weight"], second.served["head.weight"])


def test_a_few_maps_of_each_class_teach_what_all_labels_are(device, distributed, digits, run):
    """60 of 240 maps at 2 clients with half of the classes each; the extractor is random."""
    kind = replace(MID, clusters=6, components=200, server_epochs=100)
    halves = [part(digits, digits.y < 5), part(digits, digits.y >= 5)]
    sent = [kind.train(device, data, run(str(i))) for i, data in enumerate(halves)]
    served = merge(distributed, {kind.name: folded(kind, distributed, *sent)}).served
    device.load(served)
    assert accuracy_and_loss(device.logits(digits.x), digits.y).eval_acc > 0.8


def test_training_that_diverges_serves_the_base_and_so_does_a_round_without_maps(
    device, distributed, digits, run
):
    sent = MID.train(device, digits, run())
    with np.errstate(all="ignore"):
        assert folded(replace(MID, server_lr=1e30), distributed, sent).served is None
    effect = folded(MID, distributed)
    assert (effect.served, effect.num_examples) == (None, 0)


def test_maps_without_an_engine_are_an_error(device, distributed, digits, run):
    sent = MID.train(device, digits, run())
    with pytest.raises(ValueError, match="trains on the aggregator, and there is no engine"):
        folded(MID, replace(distributed, tools=None), sent)


def test_a_pool_holds_at_most_so_many_each_as_likely():
    """Of 10 maps 2 are kept: each in a fifth of all pools; the standard error of 2000 is 0.009."""
    counts = np.zeros(10)
    for seed in range(2000):
        pool, total = MapPool(2, np.random.default_rng(seed)), 0
        for start in (0, 5):
            maps = np.arange(start, start + 5, dtype=np.float32)[:, None]
            total = pool.add(maps, np.eye(10, dtype=int)[start : start + 5].sum(axis=0), total)
        assert (total, len(pool.maps)) == (10, 2)
        assert [int(feature_map[0]) for feature_map in pool.maps] == pool.labels
        counts[pool.labels] += 1
    np.testing.assert_allclose(counts / 2000, 0.2, atol=0.04)


def test_settings_travel_and_are_checked():
    kind = registry.make(
        "representatives", {"level": "up", "select": "all", "terms": {"fedprox": {"mu": 0.1}}}
    )
    assert kind == Representatives(level="up", select="all", terms=(FedProx(0.1),))
    for settings in ({"clusters": 0}, {"components": 0}, {"server_lr": 0.0}, {"pool_maps": 0}, {"epochs": 0}):
        with pytest.raises(registry.KindError, match=next(iter(settings))):
            registry.make("representatives", settings)
    with pytest.raises(registry.KindError, match="level"):
        registry.make("representatives", {"level": "head"})
