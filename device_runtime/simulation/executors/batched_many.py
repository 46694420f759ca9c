"""Trains whole networks of many devices at once with torch, if the network is small or there is a GPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING

import numpy as np

from device_runtime.device.engine.profiling import random_samples
from device_runtime.models.available_engines.available import engine_choice, open_torch
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import outline
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.errors import EngineError, TensorError
from device_runtime.models.training.optimizer import Sgd
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.training import local_training
from device_runtime.strategies.training.local_training import HasTrainingPlan, TrainingPlan

from .job import ExecutorInputs, FailedJob, Result, TrainingJob, run_of

if TYPE_CHECKING:
    from device_runtime.models.torch_engine.engine import TorchModel

log = logging.getLogger(__name__)

TOGETHER = 32
"""Networks that are trained at once on a CPU; on a GPU as many as fit GPU_SHARE of its memory."""
GPU_SHARE = 0.25
"""The share of a GPU's memory that one process takes, because several may share the GPU."""
ACTIVATIONS_FACTOR = 2
"""Torch holds about twice the activations of the bundle's training graph: 850 MB for MiniLM-L6, not 430."""


class BatchedNetworks:
    """Trains jobs of kinds that minimise only the bundle's loss, on engine torch."""

    def __init__(self, inputs: ExecutorInputs, pays: bool | None = None) -> None:
        """`pays`: forces batched training on or off; None: decided by the size of the networks."""
        self._inputs, self._pays = inputs, pays
        self._manifest = inputs.bundle.manifest
        self._model: TorchModel | None = None
        self._loaded: Tensors | None = None

    @cached_property
    def together(self) -> int:
        """The number of networks to train at once, the same each time on the same GPU."""
        if self._inputs.engine.device == "cpu":
            return TOGETHER
        return fitting(self._manifest, GPU_SHARE * self._opened().place.gpu_bytes)

    def takes(self, strategy: AnyStrategy) -> bool:
        """Whether it can train the kind, by the kind's plan for one sample.

        Raises EngineError for an engine that is not installed.
        """
        if self._pays is False or not _has_plan(strategy) or not self._on_torch():
            return False
        input_spec, target = self._manifest.input, self._manifest.target
        x, y = np.zeros((1, *input_spec.shape), input_spec.dtype), np.zeros((1, *target.shape), target.dtype)
        sample = LocalData(x, y)
        plan = _plan(strategy, self._opened(), sample, Run(0, "", clock=lambda: 0.0, upload_at=inf))
        if not local_training.is_loss_only(plan) or not isinstance(plan.optimizer, Sgd):
            return False
        from device_runtime.models.torch_engine.many import can_train_many, is_faster_together

        if not can_train_many(self._manifest, plan.tunable) or not self._runs_together(plan):
            return False
        on_cpu = self._inputs.engine.device == "cpu"
        return bool(self._pays or is_faster_together(self._manifest, plan.tunable, on_cpu))

    def train(self, base: Tensors, jobs: Sequence[TrainingJob]) -> list[Result]:
        """Trains jobs of one strategy from one base, in order. Raises EngineError, TensorError."""
        from device_runtime.models.torch_engine.many import CopySamples, train_many

        model = self._opened()
        if base is not self._loaded:
            model.load(base)
            self._loaded = base
        copies, plans = [], []
        for job in jobs:
            data = self._inputs.clients.local(job.device, self._manifest.input)
            run = run_of(job)
            plan = _plan(job.strategy, model, data, run)
            batches, counted = local_training.plan_batches(plan, run)
            copies.append(CopySamples(data.x, data.y, batches, counted, local_training.usual_batch(plan)))
            plans.append(plan)
        sgd = plans[0].optimizer
        if not isinstance(sgd, Sgd):
            raise EngineError(f"networks are trained together by SGD, not by {type(sgd).__name__}")
        learnt = train_many(model, plans[0].tunable, copies, sgd, plans[0].clip_norm)
        strategy, expected = jobs[0].strategy, jobs[0].strategy.expected(self._manifest)
        results: list[Result] = []
        check(outline(learnt.tensors[0]), expected)
        for plan, tensors, loss in zip(plans, learnt.tensors, learnt.losses, strict=True):
            update = Update(strategy.name, tensors, len(plan.indices), float(loss), strategy.variant)
            try:
                if not tensors.finite:
                    check(tensors, expected)
                results.append(update)
            except TensorError as error:
                results.append(FailedJob(str(error)))
        return results

    def close(self) -> None:
        if self._model is not None:
            self._model.unload()

    def _runs_together(self, plan: TrainingPlan) -> bool:
        """Whether copies of a user's own module can be run together: vmap cannot run all operators."""
        if not self._inputs.engine.module or self._manifest.source is not None:
            return True
        from device_runtime.models.torch_engine.many import CopySamples, train_many

        x, y = random_samples(self._manifest, 2)
        copy = CopySamples(x, y, [np.arange(2)])
        try:
            train_many(self._opened(), plan.tunable, [copy, copy], Sgd(0.0))
        except EngineError as error:
            log.warning("devices are trained one after another: their copies cannot run together (%s)", error)
            return False
        return True

    def _on_torch(self) -> bool:
        return engine_choice(self._inputs.bundle, self._inputs.engine).name == "torch"

    def _opened(self) -> TorchModel:
        if self._model is None:
            self._model = open_torch(self._inputs.bundle, self._inputs.engine)
        return self._model


def fitting(manifest: Manifest, memory_bytes: float) -> int:
    """The number of copies, 1 or more, whose weights, gradients and activations of 64 samples fit."""
    size = 16 * sum(prod(spec.shape) for spec in manifest.stored())
    graphs = (graph for name, graph in manifest.graphs.items() if name.startswith("train."))
    activations = max((graph.activation_bytes(64) for graph in graphs), default=0)
    return max(1, int(memory_bytes // (size + ACTIVATIONS_FACTOR * activations)))


def _has_plan(strategy: AnyStrategy) -> bool:
    return isinstance(strategy, HasTrainingPlan) and local_training.is_planned(strategy)


def _plan(strategy: AnyStrategy, model: TorchModel, data: LocalData, run: Run) -> TrainingPlan:
    plans: HasTrainingPlan = strategy  # type: ignore[assignment]  # by `takes`
    return plans.plan(model, data, run)
