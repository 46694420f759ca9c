"""A head in closed form for a bundle of 640 features, of which devices send statistics of 512 sums."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.manifest import Parameter
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.statistics import class_statistics, closed_form, kind_statistics
from device_runtime.strategies.statistics.class_statistics import MOMENTS, ROWS
from device_runtime.strategies.training.workload import workload

PROFILE = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
KINDS = {
    "full": {"epochs": 1, "lr": 0.05, "batch": 16},
    "few-shot": {"epochs": 1, "join_base": True},
    "class-means": {"head": "trained"},
}


@pytest.fixture(scope="module")
def wide(bundle, tmp_path_factory):
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    spec = ExportSpec("wide", bundle.manifest.input, bundle.manifest.labels)
    return export(build("mlp", {"inputs": 64, "hidden": 640}), spec, tmp_path_factory.mktemp("wide") / "b")


@pytest.fixture
def wide_model(wide):
    return OnnxModel(wide)


@pytest.fixture
def wide_round(round_model, wide):
    return replace(round_model, manifest=wide.manifest, weights=wide.weights())


def kinds(**settings):
    request = ClassStatistics(**settings)
    return {
        name: kind_statistics.with_class_statistics(registry.make(name, own), request)
        for name, own in KINDS.items()
    }


def test_updates_are_as_expected_believed_and_as_large_as_predicted(wide_model, digits, run):
    for numbers in ("float16", "int8"):
        strategy = kinds(numbers=numbers)["full"]
        update = kind_statistics.train(strategy, wide_model, digits, run())
        tensors.check(update.tensors, kind_statistics.expected(strategy, wide_model.manifest))
        _, statistics = class_statistics.split_statistics(update.tensors)
        assert statistics[ROWS].shape == (10, 10 + 512 * (2 if numbers == "float16" else 1))
        assert statistics[MOMENTS].shape == (1, 512 * 513 // 2)
        assert class_statistics.rejection_reason(statistics, 240, 2, (10, 512)) == ""
        statistics[MOMENTS][:] = statistics[MOMENTS] / 2
        assert "its class means alone make" in class_statistics.rejection_reason(
            statistics, 240, 2, (10, 512)
        )
        cost = kind_statistics.cost(strategy, workload(wide_model.manifest, digits.class_counts(10)), PROFILE)
        assert cost.bytes_up == pytest.approx(len(tensors.encode(update.tensors)), rel=0.05)


def parts(digits):
    """All digits but 8 and 9 for the first device, 8 for the second, 9 for the third."""
    chosen = digits.y < 8, digits.y == 8, digits.y == 9
    rest, eights, nines = (LocalData(digits.x[some], digits.y[some]) for some in chosen)
    both = LocalData(np.concatenate([eights.x, rest.x[:20]]), np.concatenate([eights.y, rest.y[:20]]))
    return {"full": rest, "few-shot": both, "class-means": nines}


@pytest.mark.parametrize("settings", [{}, {"features": 128, "projection_seed": 3}])
def test_what_is_served_recognises_classes_of_which_means_alone_came(
    wide_model, wide_round, digits, run, settings
):
    strategies = kinds(**settings)
    folding = Folding(strategies, wide_round, CarriedState())
    for name, data in parts(digits).items():
        result = kind_statistics.train(strategies[name], wide_model, data, run(name))
        update, sent = folding.parted(result)
        folding.pool(sent, None)
        folding.add(update, result.num_examples)
    merged, odd = folding.merged()
    assert odd == ""
    assert merged.served["head.weight"].shape == (10, 640)
    memory = merged.carried.memory[closed_form.MEMORY]
    assert memory["moments"].shape == (settings.get("features", 512),) * 2
    wide_model.load(merged.served)
    guess = wide_model.logits(digits.x).argmax(axis=1)
    assert (guess == digits.y).mean() > 0.85
    for label in (8, 9):
        assert (guess[digits.y == label] == label).mean() > 0.7


def test_logits_are_those_of_the_discriminant_analysis_of_projected_features(wide_model, wide_round, digits):
    request = ClassStatistics(features=100)
    projection, features = request.projection(640), wide_model.features(digits.x)
    projected = projection.project(features)
    statistics = class_statistics.measure_statistics(projected, digits.y, 10, 1)
    weights, bias = closed_form.solve_head(statistics)
    pool = closed_form.StatisticsPool.of({}, 10, projection).after(statistics, wide_round.weights)
    wide_model.load(pool.served(wide_round.weights, wide_round.manifest))
    expected = projected @ weights.T + bias
    np.testing.assert_allclose(wide_model.logits(digits.x), expected, atol=1e-3 * np.abs(expected).max())


def test_wide_features_fit_but_where_they_have_a_scale(wide):
    assert class_statistics.infeasible_reason(wide.manifest, ClassStatistics()) == ""
    more = Parameter("head.scale", (640,), "float32", "head", ())
    scaled = msgspec.structs.replace(wide.manifest, parameters=(*wide.manifest.parameters, more))
    why = "its 640 features have a scale, with which at most 512 can be"
    assert class_statistics.infeasible_reason(scaled, ClassStatistics()) == why
    assert class_statistics.infeasible_reason(scaled, ClassStatistics(features=640)) == ""


def test_a_pool_of_another_projection_is_begun_anew(wide_model, wide_round, digits):
    projection = ClassStatistics(features=100).projection(640)
    statistics = class_statistics.measure_statistics(
        projection.project(wide_model.features(digits.x)), digits.y, 10, 1
    )
    first = closed_form.StatisticsPool.of({}, 10, projection).after(statistics, wide_round.weights)
    assert closed_form.StatisticsPool.of(first.kept(), 10, projection).rounds == 1
    for other in (ClassStatistics(features=101), ClassStatistics(features=100, projection_seed=1)):
        assert closed_form.StatisticsPool.of(first.kept(), 10, other.projection(640)).rounds == 0
