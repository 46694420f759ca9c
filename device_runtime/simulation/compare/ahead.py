"""What would go wrong with every run, said before any is started."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.errors import ModelError
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorWish
from device_runtime.simulation.run import check_task, prepare
from device_runtime.simulation.scenario import Scenario

from .performing import of_policy
from .run_folder import Name

LOOKED_AT = 256
"""Samples, evenly spaced, that are tried on the bundle."""


def check(scenario: Scenario, missing: Sequence[Name], wish: ExecutorWish) -> None:
    """Opens the bundle, loads the data and divides it as the first of the missing runs will.

    What data sets keep in the cache is made here once, and not by each of several processes. Raises what
    `simulation.run.prepare` raises, ScenarioError for data that does not fit the bundle, ExecutorError, and
    ScenarioError for a policy whose kinds the bundle cannot do.
    """
    prepared = prepare(scenario, missing[0].seed)
    manifest = prepared.world.bundle.manifest
    fit(prepared.data, manifest, scenario.data.source)
    for policy in dict.fromkeys(name.policy for name in missing):
        task = of_policy(scenario, policy).task
        try:
            check_task(task, prepared)
        except (ScenarioError, AggregatorError) as error:
            raise ScenarioError(f"{policy}: {error}") from None
        choice.choose(prepared.world, wish, [kind.strategy for kind in task.kinds])


def fit(data: DataSet, manifest: Manifest, source: str) -> None:
    """Raises ScenarioError, saying what both are, unless the bundle takes such samples and labels."""
    few = np.linspace(0, len(data.train_x) - 1, min(LOOKED_AT, len(data.train_x))).astype(np.int64)
    try:
        manifest.input.prepare(data.train_x[few])
    except ModelError as error:
        takes = f"{manifest.input.dtype} {_by(manifest.input.shape)}"
        has = f"{data.train_x.dtype} {_by(data.train_x.shape[1:])}"
        raise ScenarioError(
            f"samples of {source} are {has}, bundle {manifest.name} takes {takes} ({error})"
        ) from None
    if len(data.labels) > len(manifest.labels):
        raise ScenarioError(
            f"{source} has {len(data.labels)} classes, bundle {manifest.name} has {len(manifest.labels)}"
        )


def _by(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape)


def bundle_sha256(name_or_path: str) -> str:
    """Of the bundle's content; empty where there is none: a report can be written again without it."""
    try:
        return Bundle.open(bundles.find(name_or_path)).sha256
    except (ModelError, OSError):
        return ""
