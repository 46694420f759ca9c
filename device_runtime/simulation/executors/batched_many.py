"""Trains whole networks of many devices at once with torch, if the network is small or there is a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.device.engine.profiling import random_samples
from device_runtime.models.available_engines.available import engine_choice, open_torch
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import StackedCopy, outline
from device_runtime.models.bundles.tensors import Flat, Tensors, check
from device_runtime.models.errors import EngineError, GpuOutOfMemory, ModelError, TensorError
from device_runtime.models.training.optimizer import Adam, Sgd
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Run
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.terms.accountant import PrivacyError
from device_runtime.strategies.terms.proximal import Proximal
from device_runtime.strategies.training import local_training
from device_runtime.strategies.training.local_training import HasTrainingPlan, TrainingPlan, TrainingResult

from .fleet_samples import DeviceSamples, FleetSamples
from .job import ExecutorInputs, FailedJob, Result, TrainingJob, run_of, with_own_memory

if TYPE_CHECKING:
    from device_runtime.models.torch_engine.engine import TorchModel
    from device_runtime.models.torch_engine.many import CopySamples

log = logging.getLogger(__name__)

TOGETHER = 32
"""Networks that are trained at once on a CPU; on a GPU as many as fit `place.GPU_SHARE` of its memory."""
ACTIVATIONS_FACTOR = 2
"""Torch holds about twice the activations of the bundle's training graph: 850 MB for MiniLM-L6, not 430."""
PAYS_BELOW_FLOPS = 6_000_000
"""FLOPs of one sample's training step up to which training copies together pays on a CPU.

Measured on one core with 10 to 50 copies: an MLP (0.2 MFLOP) is 1.9 to 2.5 times as fast, two convolutions on
8x8 (3 MFLOP) 1.8 to 2 times, WRN-10 on 8x8 (5 MFLOP) 1.5 to 1.7 times; two convolutions of 8 and 16 maps on
32x32 (7 MFLOP) and WRN-16 on 32x32 (200 MFLOP) take twice the time. With batch norm, 20 copies of 100 images:
WRN-16-1 on 8x8 (5 MFLOP) is 1.7 to 2.5 times as fast, on 16x16 (19 MFLOP) 0.7 to 1.2 times, on 32x32
(75 MFLOP) half as fast.
"""


def is_faster_together(inputs: ExecutorInputs, member: str, tunable: str) -> bool:
    """Whether many copies of a tunable set are trained faster together: always on a GPU, on a CPU if small.

    Judged by the FLOPs of the graph, not by a measurement.
    """
    if inputs.engine.device != "cpu":
        return True
    graph = inputs.of(member).manifest.graphs.get(f"train.{tunable}")
    return graph is not None and graph.flops <= PAYS_BELOW_FLOPS


@dataclass(frozen=True)
class _PlannedJob:
    """A job with the device's samples and its plan to train on them."""

    job: TrainingJob
    samples: DeviceSamples
    run: Run
    plan: TrainingPlan

    @property
    def settings(self) -> tuple[object, ...]:
        """What has to be the same in copies that are trained together."""
        plan = self.plan
        anchors = tuple(tuple(term.anchor) for term in plan.gradients if isinstance(term, Proximal))
        return plan.tunable, plan.objective, plan.optimizer, plan.clip_norm, plan.privacy is None, anchors


class BatchedNetworks:
    """Trains jobs of kinds that train a model by a plan, on engine torch.

    A kind's plan is made, and its update is made of the result, device by device, as on a device; the steps
    between are those of all devices at once. The network is that of one member of the family.
    """

    def __init__(self, inputs: ExecutorInputs, pays: bool | None = None, member: str = "") -> None:
        """`pays`: forces batched training on or off; None: decided by the size of the networks."""
        self._inputs, self._pays, self._member = inputs, pays, member
        self._bundle = inputs.of(member)
        self._manifest = self._bundle.manifest
        self._model: TorchModel | None = None
        self._loaded: Tensors | None = None
        self._flat: dict[str, Flat] = {}

    @cached_property
    def together(self) -> int:
        """The number of networks to train at once, the same each time on the same GPU."""
        if self._inputs.engine.device == "cpu":
            return TOGETHER
        return fitting(self._manifest, self._opened().place.gpu_share_bytes)

    @cached_property
    def _samples(self) -> FleetSamples:
        return FleetSamples(self._inputs.clients, self._manifest, self._opened().place)

    def refusal(self, strategy: AnyStrategy) -> str:
        """Why it does not train the kind; empty if it does. Judged by steps on random samples.

        Raises EngineError for an engine that is not installed.
        """
        if self._pays is False:
            return "the executor was chosen so"
        if (engine := engine_choice(self._bundle, self._inputs.engine).name) != "torch":
            return f"engine {engine} runs one network at a time, engine torch runs many"
        if not isinstance(strategy, HasTrainingPlan) or not local_training.is_planned(strategy):
            return "it trains by its own code, not by a plan"
        try:
            planned = [self._example(strategy) for _ in range(2)]
            if why := self._objection(planned[0].plan):
                return why
            self._learnt(planned)
        except (ModelError, OwnCodeError, PrivacyError) as error:
            return f"their copies cannot run together ({error})"
        return ""

    def train(self, base: Tensors, jobs: Sequence[TrainingJob], aside: Tensors = NO_TENSORS) -> list[Result]:
        """Trains jobs of one strategy from one base, in order. Raises EngineError, TensorError."""
        self._hold(base)
        results: dict[int, Result] = {}
        groups: dict[tuple[object, ...], dict[int, _PlannedJob]] = {}
        samples = self._samples.of([job.device for job in jobs])
        for place, (job, of_device) in enumerate(zip(jobs, samples, strict=True)):
            try:
                planned = self._planned(job, of_device, run_of(job, aside))
                groups.setdefault(planned.settings, {})[place] = planned
            except (TensorError, OwnCodeError) as error:
                results[place] = FailedJob(str(error))
        for group in groups.values():
            results.update(zip(group, self._trained(list(group.values())), strict=True))
        return [results[place] for place in range(len(jobs))]

    def close(self) -> None:
        if self._model is not None:
            self._model.unload()

    def _trained(self, planned: Sequence[_PlannedJob]) -> Iterator[Result]:
        expected = planned[0].job.strategy.expected(self._manifest)
        for each, result in zip(planned, self._learnt(planned), strict=True):
            strategy: HasTrainingPlan = each.job.strategy  # type: ignore[assignment]  # by `refusal`
            try:
                with own_code(type(strategy)):
                    update = strategy.update_of(result, self._opened(), each.samples.local, each.run)
                check(outline(update.tensors), expected)
                if isinstance(update.tensors, StackedCopy) and not update.tensors.finite:
                    check(update.tensors, expected)
            except (TensorError, OwnCodeError) as error:
                yield FailedJob(str(error))
                continue
            yield with_own_memory(replace(update, variant=each.job.strategy.variant))

    def _learnt(self, planned: Sequence[_PlannedJob]) -> list[TrainingResult]:
        """The result of each plan, all of the same settings."""
        from device_runtime.models.torch_engine.many import train_many

        plan = planned[0].plan
        for each in planned:
            if why := self._objection(each.plan):
                raise EngineError(f"{each.job.strategy.name} of {each.job.name} is trained alone: {why}")
        copies = [self._copy(each) for each in planned]
        results: dict[int, TrainingResult] = {}
        waiting = sorted(range(len(copies)), key=lambda i: -len(copies[i].batches))
        while waiting:
            part = waiting[: self.together]
            try:
                learnt = train_many(
                    self._opened(),
                    plan.tunable,
                    [copies[i] for i in part],
                    plan.optimizer,
                    plan.clip_norm,
                    plan.objective,
                )
            except GpuOutOfMemory as error:
                self._halve(len(part), error)
                continue
            for i, tensors, loss in zip(part, learnt.tensors, learnt.losses, strict=True):
                results[i] = TrainingResult(planned[i].plan, tensors, float(loss), planned[i].plan.epochs)
            waiting = waiting[len(part) :]
        return [results[i] for i in range(len(planned))]

    def _halve(self, together: int, error: GpuOutOfMemory) -> None:
        """Lets fewer networks be trained together from now on. Raises the error if it was one alone."""
        if together == 1:
            raise error
        self.together = (together + 1) // 2
        log.warning(
            "%d networks are trained together from now on, not %d: %s", self.together, together, error
        )
        error.__traceback__ = error.__cause__ = None  # which hold the tensors
        self._opened().place.free_unused()

    def _copy(self, planned: _PlannedJob) -> CopySamples:
        from device_runtime.models.torch_engine.many import CopySamples

        plan, samples = planned.plan, planned.samples
        batches, counted = local_training.plan_batches(plan, planned.run)
        x, y, rows = samples.x, samples.y, samples.rows
        if extras := self._extras(plan, len(rows)):  # which are by sample of this device
            x, y, rows = samples.local.x, samples.local.y, np.arange(len(rows))
        return CopySamples(
            x,
            y,
            [rows[part] for part in batches],
            counted,
            local_training.usual_batch(plan),
            extras,
            [(term.weight, term.anchor) for term in plan.gradients if isinstance(term, Proximal)],
            plan.privacy,
            min(plan.batch, len(plan.indices)),
        )

    def _extras(self, plan: TrainingPlan, samples: int) -> dict[str, NDArray[Any]]:
        """The inputs of the plan's objective; those by sample for all samples, 0 where none is trained on."""
        extras = dict(plan.extras(plan.indices))
        for extra in self._manifest.graphs[f"{plan.objective}.{plan.tunable}"].extras:
            if extra.per_sample:
                rows = np.zeros((samples, *extra.shape), np.float32)
                rows[plan.indices] = extras[extra.name]
                extras[extra.name] = rows
        return extras

    def _objection(self, plan: TrainingPlan) -> str:
        """Why copies are not trained together by this plan; empty if they are."""
        from device_runtime.models.torch_engine.many import can_train

        graph = self._manifest.graphs.get(f"{plan.objective}.{plan.tunable}")
        if graph is None:
            return f"bundle {self._manifest.name} has no graph {plan.objective}.{plan.tunable}"
        if own := [term for term in plan.gradients if not isinstance(term, Proximal)]:
            return f"term {type(own[0]).__name__} adds gradients by its own code"
        if not isinstance(plan.optimizer, (Sgd, Adam)):
            return f"its optimiser is {type(plan.optimizer).__name__}, not SGD or Adam"
        if not can_train(plan.objective):
            return f"objective {plan.objective} is no mean of losses of single samples"
        if self._pays is None and not is_faster_together(self._inputs, self._member, plan.tunable):
            most = f"{PAYS_BELOW_FLOPS / 1e6:g} MFLOP"
            return f"a sample's step has {graph.flops / 1e6:.3g} MFLOP, and a CPU gains up to {most} only"
        return ""

    def _example(self, strategy: AnyStrategy) -> _PlannedJob:
        """The plan of a device with two random samples."""
        data, job = LocalData(*random_samples(self._manifest, 2)), TrainingJob(0, "", strategy, 0, "0")
        samples = DeviceSamples(data.x, data.y, np.arange(2), data)
        return self._planned(job, samples, Run(0, "", clock=lambda: 0.0, upload_at=inf))

    def _planned(self, job: TrainingJob, samples: DeviceSamples, run: Run) -> _PlannedJob:
        plans: HasTrainingPlan = job.strategy  # type: ignore[assignment]  # by `refusal`
        with own_code(type(job.strategy)):
            plan = plans.plan(self._opened(), samples.local, run)
            for term in plan.gradients:
                term.start(self._params(plan.tunable))
        return _PlannedJob(job, samples, run, plan)

    def _params(self, tunable: str) -> Flat:
        if tunable not in self._flat:
            self._flat[tunable] = Flat(self._manifest.specs(tunable))
        return self._flat[tunable]

    def _hold(self, base: Tensors) -> None:
        if base is not self._loaded:
            self._opened().load(base)
            self._loaded = base

    def _opened(self) -> TorchModel:
        if self._model is None:
            self._model = open_torch(self._bundle, self._inputs.engine)
        return self._model


def fitting(manifest: Manifest, memory_bytes: float) -> int:
    """The number of copies, 1 or more, whose weights, gradients and activations of 64 samples fit."""
    size = 16 * sum(prod(spec.shape) for spec in manifest.stored())
    graphs = (graph for name, graph in manifest.graphs.items() if name.startswith("train."))
    activations = max((graph.activation_bytes(64) for graph in graphs), default=0)
    return max(1, int(memory_bytes // (size + ACTIVATIONS_FACTOR * activations)))
