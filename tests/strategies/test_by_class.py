"""Kinds of update on bundles whose loss is not cross-entropy."""

import numpy as np
import pytest

from device_runtime.device.selection.choose import MAIN, choose
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles import shipped
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.workload import workload

BY_CLASS = {
    "entropy-subset", "few-shot", "class-means", "full+few-shot", "representatives", "prototypes",
    "attention-transfer",
}  # fmt: skip


@pytest.fixture
def houses(exported):
    return Bundle.open(exported.of_loss("mse"))


def test_these_kinds_work_by_class():
    assert {name for name, kind in registry.kinds().items() if kind.traits.by_class} == BY_CLASS


def test_a_device_says_why_it_passes_over_a_kind_that_works_by_class(houses):
    kinds = [registry.make("class-means", {}), registry.make("full", {})]
    plan = choose(shipped("pi-5"), kinds, {MAIN: workload(houses.manifest, (50,))}, 60.0)
    assert plan.chosen.kind == "full"
    assert plan.reasons == (
        "class-means works by class, and the bundle's loss is mse of price, area, not cross-entropy over "
        "classes",
    )


def test_class_means_of_class_statistics_apply_by_stratum(houses):
    kinds = [registry.make("few-shot", {"statistics": {}}), registry.make("class-means", {"statistics": {}})]
    plan = choose(shipped("pi-5"), kinds, {MAIN: workload(houses.manifest, (50,))}, 60.0)
    assert plan.chosen.kind == "class-means"
    assert len(plan.reasons) == 1


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("full", {"epochs": 40}),
        ("full", {"epochs": 40, "terms": {"fedprox": {"mu": 0.01}}}),
        ("peft", {"tunable": "head", "epochs": 40, "lr": 0.1}),
        ("local-zeroth-order", {"steps": 300, "tunable": "all"}),
    ],
)
def test_kinds_that_train_lower_the_loss_of_a_regression(houses, kind, settings):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    data = LocalData(x, np.stack([x[:, 0], x[:, 1]], 1))
    model, strategy = OnnxModel(houses), registry.make(kind, settings)
    before = model.probe().loss(data.x, data.y)
    update = strategy.train(model, data, Run(0, "a", clock=lambda: 0.0, upload_at=1e9))
    model.load(update.tensors)
    assert model.probe().loss(data.x, data.y) < 0.8 * before


def test_zeroth_order_scalars_measure_the_loss_of_a_regression(houses):
    data = LocalData(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32))
    strategy = registry.make("zeroth-order", {})
    update = strategy.train(OnnxModel(houses), data, Run(0, "a", clock=lambda: 0.0, upload_at=1e9))
    assert all(np.isfinite(value).all() and value.any() for value in update.tensors.values())
