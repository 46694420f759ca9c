"""What round 1 distributes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from models.bundle import Bundle
from models.initial import fresh
from models.tensors import Tensors
from strategies.aggregator_half import Carried, RoundModel
from strategies.folding import derived

from .task import Task
from .tools import Tools

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
