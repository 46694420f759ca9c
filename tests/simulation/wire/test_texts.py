"""Federated rounds on texts, on the simulated wire: small sets by back-propagation, scalars, class means."""

import numpy as np
import pytest

from device_runtime.simulation.rounds import run
from device_runtime.simulation.scenarios import scenario
from tests.simulation.wire.run import WireCourse, perform

KINDS = {
    "bias": {"name": "peft", "settings": {"tunable": "bias", "epochs": 1, "lr": 0.05}},
    "lora": {"name": "peft", "settings": {"tunable": "lora", "epochs": 1, "lr": 0.05}},
    "scalars": {"name": "zeroth-order", "settings": {"tunable": "bias", "lr": 0.01}},
    "means": {"name": "class-means"},
}


@pytest.fixture
def prepared(text_bundle, reviews):
    def bundle_of(kind):
        over = {
            "devices": 3,
            "data": {"source": "text", "path": str(reviews), "partition": "iid"},
            "task": {
                "bundle": str(text_bundle.path),
                "rounds": 2,
                "kinds": [kind],
                "round_deadline_s": 600.0,
            },
        }
        return run.prepare(scenario.load("uniform", over), 0)

    return bundle_of


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_devices_of_texts_take_part_in_every_round(prepared, text_bundle, name):
    ready = prepared(KINDS[name])
    assert ready.data.train_x.shape == (48, 24)
    done = perform(ready, WireCourse(seed=0, until_s=5000))
    assert [record.participants for record in done.rounds] == [3, 3]
    before = text_bundle.weights()
    moved = {n for n in before if not np.array_equal(before[n], done.weights[n])}
    tunable = {"scalars": "bias", "means": "head"}.get(name, name)
    assert moved
    assert moved <= {spec.name for spec in text_bundle.manifest.specs(tunable)}
