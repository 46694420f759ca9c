"""The batched executor: trains the heads or whole networks of many devices in a few large products."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import TensorError
from device_runtime.models.training.heads import (
    HeadTrainingData,
    head_matrix,
    inputs_of,
    split_heads,
    train_heads,
)
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.statistics.class_statistics import split_statistics
from device_runtime.strategies.statistics.kind_statistics import (
    Measured,
    add_statistics,
    measured,
    specs,
    statistics_of,
)
from device_runtime.strategies.training.local_training import (
    HeadTraining,
    TakesFeatures,
    TrainsHead,
    takes_features,
)

from .batched_many import BatchedNetworks
from .job import Executor, ExecutorInputs, FailedJob, Result, TrainingJob, run_of

log = logging.getLogger(__name__)

CACHE_BYTES = 256 << 20


class BatchedTrainer(Protocol):
    """Trains up to `together` jobs of one strategy from one base at once."""

    @property
    def together(self) -> int: ...

    def refusal(self, strategy: AnyStrategy) -> str:
        """Why it cannot train jobs of this strategy; empty if it can."""

    def train(self, base: Tensors, jobs: Sequence[TrainingJob], aside: Tensors) -> list[Result]:
        """Trains the jobs, each as if it were alone; results are in their order.

        aside: the tensors sent with the base. Raises ModelError.
        """

    def close(self) -> None:
        """Frees memory. May be called twice."""


class Batched:
    """The batched executor.

    Heads are trained on cached features, which hold while the extractor stays the same. On engine torch whole
    networks are trained by one call for a step of all devices. Class statistics use the cached features.

    Results are those of the plain executor to rounding. Jobs that gain nothing, those with samples held out,
    and devices without samples go to `fallback`, which is closed with this one. The log says why, once for
    each kind.
    """

    def __init__(
        self,
        inputs: ExecutorInputs,
        fallback: Executor,
        cache_bytes: int = CACHE_BYTES,
        networks: bool | None = None,
    ) -> None:
        """`cache_bytes`: the approximate size of the feature cache.

        `networks`: whether whole networks are trained together on engine torch; None: decided by a rule.
        """
        self.name = f"batched, {fallback.name}"
        self._inputs, self._fallback = inputs, fallback
        self._features = Features(inputs, cache_bytes)
        self._heads = BatchedHeads(inputs, self._features)
        self._networks = {name: BatchedNetworks(inputs, networks, name) for name in inputs.bundles}
        self._chosen: dict[AnyStrategy, BatchedTrainer | None] = {}
        self._logged: set[str] = set()

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        trainers = [self._trainer_of(job) for job in jobs]
        others = [job for job, trainer in zip(jobs, trainers, strict=True) if trainer is None]
        rest = self._fallback.run(bases, others) if others else iter(())
        ready: dict[int, Result] = {}
        for i, trainer in enumerate(trainers):
            if trainer is None:
                yield next(rest)
                continue
            if i not in ready:
                alike = (
                    n for n in range(i, len(jobs)) if trainers[n] is trainer and _alike(jobs[n], jobs[i])
                )
                chosen = list(islice(alike, trainer.together))
                results = self._trained(trainer, bases, [jobs[n] for n in chosen])
                ready.update(zip(chosen, results, strict=True))
            yield ready.pop(i)

    def close(self) -> None:
        self._heads.close()
        for networks in self._networks.values():
            networks.close()
        self._fallback.close()

    def _trained(
        self, trainer: BatchedTrainer, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]
    ) -> list[Result]:
        """Trains jobs of one strategy from one base, with the class statistics that it asks for."""
        base, aside = bases[jobs[0].base], bases[jobs[0].aside] if jobs[0].aside else NO_TENSORS
        results = trainer.train(base, jobs, aside)
        if statistics_of(jobs[0].strategy) is None:
            return results
        samples = self._features.of(base, [job.device for job in jobs])
        manifest = self._inputs.bundle.manifest
        if manifest.target.compared == "input":
            clients, spec = self._inputs.clients, manifest.input
            inputs = [clients.local(job.device, spec).x for job in jobs]
        else:
            inputs = [each.inputs for each in samples]
        return [
            _with_statistics(update, job, LocalData(x, each.y), each.inputs, manifest)
            for update, job, x, each in zip(results, jobs, inputs, samples, strict=True)
        ]

    def _trainer_of(self, job: TrainingJob) -> BatchedTrainer | None:
        if not len(self._inputs.clients.indices(job.device)):
            return None
        if job.strategy not in self._chosen:
            self._chosen[job.strategy] = self._trainer_for(job.strategy)
        return self._chosen[job.strategy]

    def _trainer_for(self, strategy: AnyStrategy) -> BatchedTrainer | None:
        networks = self._networks.get(strategy.member)
        if networks is None:
            return None  # the fallback says which members there are
        if (statistics := statistics_of(strategy)) is not None and statistics.hold_out:
            self._log(strategy, "they hold samples out")
            return None
        if not self._heads.refusal(strategy):
            return self._heads
        if why := networks.refusal(strategy):
            self._log(strategy, why)
            return None
        return networks

    def _log(self, strategy: AnyStrategy, why: str) -> None:
        line = f"devices of kind {strategy.name} are trained one after another: {why}"
        if line not in self._logged:
            self._logged.add(line)
            log.log(logging.INFO if self._inputs.engine.device == "cpu" else logging.WARNING, "%s", line)


def _alike(job: TrainingJob, other: TrainingJob) -> bool:
    return (job.base, job.aside, job.strategy) == (other.base, other.aside, other.strategy)


def _with_statistics(
    update: Result, job: TrainingJob, samples: LocalData, inputs: NDArray[np.float32], manifest: Manifest
) -> Result:
    """Adds class statistics to a result, with the same draws as `kind_statistics.train`.

    inputs: those of the head (n, inputs); `samples.x` is looked at where it is the target.
    """
    if isinstance(update, FailedJob):
        return update
    strategy, run = job.strategy, run_of(job)
    rows = measured(strategy, len(samples.y), run)
    features = inputs[:, : manifest.head.features]
    if rows is not None:
        features, samples = features[rows], LocalData(samples.x[rows], samples.y[rows])
    try:
        whole = add_statistics(strategy, update, Measured.of(manifest, features, samples), run)
        check(split_statistics(whole.tensors)[1], specs(strategy, manifest))
    except TensorError as error:
        return FailedJob(str(error))
    return whole


TOGETHER_BYTES = 1 << 20
"""Bytes of heads that are trained at once; more would not fit a processor's cache and gain nothing."""
LEAST_TOGETHER = 8


class BatchedHeads:
    """Trains the heads of many devices at once, or sums their features, from cached features.

    For kinds that train only the head, or need only features (class sums).
    """

    def __init__(self, inputs: ExecutorInputs, features: Features) -> None:
        self._manifest = inputs.bundle.manifest
        self._features = features
        head = self._manifest.head
        size = 4 * len(self._manifest.labels) * (head.features + 1)
        self.together = max(LEAST_TOGETHER, TOGETHER_BYTES // size)

    def refusal(self, strategy: AnyStrategy) -> str:
        """Empty for a kind that trains only the head or takes features, by its own interface."""
        takes = not strategy.member and takes_features(strategy, self._manifest)
        return "" if takes else "it trains more than the head"

    def train(self, base: Tensors, jobs: Sequence[TrainingJob], aside: Tensors) -> list[Result]:
        """Trains jobs of one strategy from one base, in order. Raises as `Features.of` does."""
        strategy = jobs[0].strategy
        samples = self._features.of(base, [job.device for job in jobs])
        if isinstance(strategy, TakesFeatures):
            width = self._manifest.head.features
            results = [strategy.from_features(k.inputs[:, :width], k.y, self._manifest) for k in samples]
            updates = [replace(result, variant=strategy.variant) for result in results]
            return [_checked(result, self._manifest, strategy) for result in updates]
        return self._trained(base, jobs, aside, samples)

    def close(self) -> None:
        self._features.forget()

    def _trained(
        self, base: Tensors, jobs: Sequence[TrainingJob], aside: Tensors, samples: Sequence[HeadSamples]
    ) -> list[Result]:
        plans = [_plan(job, aside, k) for job, k in zip(jobs, samples, strict=True)]
        data = [
            HeadTrainingData(k.inputs, k.y, p.batches, p.counted) for k, p in zip(samples, plans, strict=True)
        ]
        head, strategy = self._manifest.head, jobs[0].strategy
        learnt = train_heads(head_matrix(base, head), data, plans[0].optimizer, plans[0].clip_norm)
        updates = [
            Update(strategy.name, tensors, len(k.y), float(loss), strategy.variant)
            for tensors, k, loss in zip(split_heads(learnt.heads, head), samples, learnt.losses, strict=True)
        ]
        if np.isfinite(learnt.heads).all():
            return list(updates)
        return [_checked(contribution, self._manifest, strategy) for contribution in updates]


def _plan(job: TrainingJob, aside: Tensors, samples: HeadSamples) -> HeadTraining:
    strategy: TrainsHead = job.strategy  # type: ignore[assignment]  # by `refusal`
    return strategy.head_training(samples.y, run_of(job, aside))


def _checked(update: Update, manifest: Manifest, strategy: AnyStrategy) -> Result:
    try:
        check(update.tensors, strategy.expected(manifest))
    except TensorError as error:
        return FailedJob(str(error))
    return update


READ_TOGETHER = 4096
"""Samples that are read and prepared at once."""
BATCH, SMALL_BATCH = 128, 32
"""Samples of one pass: on engine torch the first takes two thirds of the time of the second."""
BATCH_BYTES = 256 << 20
"""Bytes of activations up to which a pass has BATCH samples, else SMALL_BATCH."""


@dataclass(frozen=True)
class HeadSamples:
    """A device's samples as its head sees them: inputs float32 (n, inputs), targets y as graphs take them."""

    inputs: NDArray[np.float32]
    y: NDArray[Any]

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.y.nbytes


class Features:
    """A cache of devices' features, valid while the extractor stays the same.

    It takes about `most_bytes` at most; the devices longest unused are dropped first.
    """

    def __init__(self, inputs: ExecutorInputs, most_bytes: int) -> None:
        self._inputs, self._most = inputs, most_bytes
        head = inputs.bundle.manifest.head
        self._head = head
        names = {spec.name for spec in inputs.bundle.manifest.stored()} - {head.weight, head.bias}
        self._extractor: Tensors | None = None if names else {}
        self._names = sorted(names)
        self._samples: OrderedDict[int, HeadSamples] = OrderedDict()
        self._bytes = 0

    def of(self, base: Tensors, devices: Sequence[int]) -> list[HeadSamples]:
        """The samples of each device, in the order of `devices`; read-only.

        Raises TensorError, EngineError, BundleError.
        """
        self._adopt(base)
        samples = {device: self._samples[device] for device in devices if device in self._samples}
        for device in samples:
            self._samples.move_to_end(device)
        for device, computed in self._computed([d for d in dict.fromkeys(devices) if d not in samples]):
            samples[device] = computed
            self._keep(device, computed)
        return [samples[device] for device in devices]

    def forget(self) -> None:
        """Empties the cache and unloads the model; the next use computes again."""
        self._samples.clear()
        self._bytes = 0
        if "_model" in self.__dict__:
            self._model.unload()

    @cached_property
    def _model(self) -> DeviceModel:
        """The model, opened when it is first needed: it may take more memory than all else."""
        forward = self._inputs.bundle.manifest.graphs["forward"]
        batch = BATCH if forward.activation_bytes(BATCH) <= BATCH_BYTES else SMALL_BATCH
        return open_model(self._inputs.bundle, self._inputs.engine, batch=batch)

    def _adopt(self, base: Tensors) -> None:
        old = self._extractor
        if old is not None and all(base[n] is old[n] or np.array_equal(base[n], old[n]) for n in self._names):
            return
        self._samples.clear()
        self._bytes = 0
        self._model.load(base)
        self._extractor = {name: base[name] for name in self._names}

    def _computed(self, devices: Sequence[int]) -> Iterator[tuple[int, HeadSamples]]:
        """Computes features: on a CPU of each device by itself, bit for bit as the plain executor does."""
        clients, spec = self._inputs.clients, self._inputs.bundle.manifest.input
        for group in _groups(devices, [len(clients.indices(device)) for device in devices]):
            rows = [clients.indices(device) for device in group]
            ends = np.cumsum([len(part) for part in rows])[:-1]
            x = spec.prepare(clients.x[np.concatenate(rows)])
            alone = self._inputs.engine.device == "cpu"
            features = map(self._features, np.split(x, ends)) if alone else np.split(self._features(x), ends)
            for device, of_device, part in zip(group, features, rows, strict=True):
                yield device, HeadSamples(inputs_of(of_device, self._head), clients.y[part])

    def _features(self, x: NDArray[Any]) -> NDArray[np.float32]:
        return x.reshape(len(x), -1) if self._given_through else self._model.features(x)

    def _keep(self, device: int, samples: HeadSamples) -> None:
        self._samples[device] = samples
        self._bytes += samples.nbytes
        while self._bytes > self._most and self._samples:
            _, forgotten = self._samples.popitem(last=False)
            self._bytes -= forgotten.nbytes

    @cached_property
    def _given_through(self) -> bool:
        """Whether the network is only a head that takes the input unchanged, tested on one batch."""
        manifest = self._inputs.bundle.manifest
        if (
            self._names
            or manifest.input.dtype != "float32"
            or prod(manifest.input.shape) != self._head.features
        ):
            return False
        x = np.random.default_rng([0]).standard_normal((8, *manifest.input.shape), np.float32)
        return np.array_equal(self._model.features(x), x.reshape(8, -1))


def _groups(devices: Sequence[int], samples: Sequence[int]) -> Iterator[list[int]]:
    """Divides the devices, in order, into groups of about READ_TOGETHER samples."""
    group: list[int] = []
    together = 0
    for device, count in zip(devices, samples, strict=True):
        group.append(device)
        together += count
        if together >= READ_TOGETHER:
            yield group
            group, together = [], 0
    if group:
        yield group
