"""What round 1 distributes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from device_runtime.aggregator.merging.strategy_tools import Tools
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.initial import fresh
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.merging.aggregator_half import Carried, RoundModel
from device_runtime.strategies.merging.folding import derived

FRESH = 3
"""Purpose of the draws of fresh parameters."""


def first(task: Task, models: Mapping[str, Bundle], tools: Tools) -> tuple[Tensors, Carried]:
    """The bundles' weights, or fresh ones, of the main model and its family."""
    weights = {member: started(bundle, task, place) for place, (member, bundle) in enumerate(models.items())}
    main = weights.pop("")
    model = RoundModel(models[""].manifest, main, 0, task.seed, tools=tools)
    cut = derived((kind.strategy for kind in task.kinds), main, model)
    return main, Carried(family={**weights, **cut})


def started(bundle: Bundle, task: Task, place: int) -> Tensors:
    """The weights of one model at the start; `place` makes its draws its own."""
    weights = bundle.weights()
    if task.start == "bundle":
        return weights
    rng = np.random.default_rng([task.seed, FRESH, place])
    return {**weights, **fresh(bundle.manifest, weights, rng)}
