"""A task that only evaluates: devices' sums become the figures of its round, and the model stays."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.views.console_log import summary
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.tensors import decode
from device_runtime.models.training.metrics import FurtherMetrics
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.kinds.evaluation import FederatedEvaluation


def test_a_round_of_evaluation_has_the_figures_of_all_devices_together(bench, make_task, bundle):
    raw = load_digits()
    x, y = bundle.manifest.input.prepare(raw.images[:240, None]), raw.target[:240].astype(np.int64)
    model, kind = open_model(bundle), FederatedEvaluation(hold_out=1.0)
    b = bench(make_task(KindSettings(name="evaluation", settings={"hold_out": 1.0}), rounds=1))
    b.join("a", "b")
    for device, part in (("a", slice(0, 60)), ("b", slice(60, 240))):
        run = Run(b.service.rounds.seed(1), device, clock=lambda: 0.0, upload_at=1.0, round=1)
        update = kind.train(model, LocalData(x[part], y[part]), run)
        content = b.contribution("evaluation", (update.tensors, update.num_examples))
        assert b.contribute(device, content)[0].status == "accepted"
    (closed,) = b.store.rounds.closed()
    record, logits = closed.record, model.logits(x)
    assert (record.held_out_samples, record.held_out_of) == (240, "the model of round 0")
    assert record.held_out_acc == pytest.approx((logits.argmax(axis=1) == y).mean())
    further = FurtherMetrics(["f1-macro"], bundle.manifest.target).of_outputs(logits, x, y)
    assert record.metrics["held-out f1-macro"] == pytest.approx(further["f1-macro"])
    assert record.metrics["held-out loss"] > 0
    assert "of 240 held out by devices (the model of round 0), held-out loss" in summary(closed)
    served = decode(b.store.models.get(b.store.rounds.made(1).served))
    assert all(np.array_equal(served[name], value) for name, value in bundle.weights().items())
