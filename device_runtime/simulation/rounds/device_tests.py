"""Tests the model that a run serves last on the test samples of each device's own."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan

import numpy as np

from device_runtime.device.personal.after_round import OwnHead, personal_evaluation
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.heads import Evaluation
from device_runtime.simulation.history.records import DeviceEvaluation

from .learning import ON_CPU
from .run import PreparedRun

MOST_DEVICES = 1000
"""The most devices that are tested, evenly spaced in a larger fleet, because each trains a classifier."""


def evaluations(prepared: PreparedRun, served: Tensors) -> Iterator[DeviceEvaluation]:
    """Yields the figures of each device; of none where devices have no test samples of their own.

    The personal model is the served one with the classifier that a device would train on its own samples
    (`device.personal`): its figures are given whether or not the device would use it. Raises ModelError.
    """
    scenario, inputs, parts = prepared.scenario, prepared.inputs, prepared.test_parts
    if parts is None:
        return
    fleet = scenario.fleet.draw(scenario.devices, prepared.seed)
    model = open_model(inputs.bundle, ON_CPU if inputs.engine.device == "cpu" else inputs.engine)
    model.load(served)
    spec = inputs.bundle.manifest.input
    for device in np.linspace(0, len(fleet) - 1, min(MOST_DEVICES, len(fleet))).astype(np.int64).tolist():
        training, test = inputs.clients.local(device, spec), parts.local(device, spec)
        own = OwnHead(prepared.seed, fleet.name(device), lambda: 0.0)
        result = personal_evaluation(model, training, test, own)
        head = result.own_head or Evaluation(nan, nan, 0)
        yield DeviceEvaluation(
            fleet.name(device),
            fleet.group(device),
            len(training),
            len(test),
            result.served.eval_acc,
            result.served.eval_loss,
            head.eval_acc,
            head.eval_loss,
        )
