"""Binary encoding of jobs, base models and replies: MessagePack and aligned tensors, nothing pickled."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Kind
from device_runtime.models import errors as model_errors
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import ALIGNMENT, Tensors, TensorSpec
from device_runtime.models.errors import ModelError, one_line
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies import plugins
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import kind_statistics

from .job import ExecutorInputs, FailedJob, Result, TrainingJob

Layout = tuple[TensorSpec, ...]
"""The specs of tensors that are stored one after another; see `places`."""


class PackedJob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A `TrainingJob` whose strategy is number `strategy` of the kinds packed with it.

    Its memory is stored separately, in layout number `memory`; -1: it has none.
    """

    device: int
    name: str
    strategy: int
    seed: int
    base: str
    memory: int = -1
    aside: str = ""
    rare: tuple[int, ...] = ()


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """Packed jobs, with each different strategy once, as in an offer, and each different memory layout."""

    jobs: tuple[PackedJob, ...]
    kinds: tuple[Kind, ...]
    layouts: tuple[Layout, ...]

    def layout(self, job: PackedJob) -> Layout:
        """The layout of a job's memory."""
        return self.layouts[job.memory] if job.memory >= 0 else ()


pack = msgspec.msgpack.Encoder().encode


def pack_jobs(jobs: Sequence[TrainingJob]) -> Packed:
    """Packs the jobs without their memory.

    Raises ExecutorError for a strategy that another process would not read back as the same.
    """
    numbers: dict[int, int] = {}  # by id of the strategy, which the jobs keep alive
    kinds: dict[tuple[str, bytes], int] = {}
    layouts: dict[Layout, int] = {}
    packed = []
    for job in jobs:
        if id(job.strategy) not in numbers:
            kind = _written(job.strategy)
            numbers[id(job.strategy)] = kinds.setdefault((kind.name, bytes(kind.settings)), len(kinds))
        memory = layouts.setdefault(specs_of(job.memory), len(layouts)) if job.memory else -1
        number = numbers[id(job.strategy)]
        packed.append(
            PackedJob(job.device, job.name, number, job.seed, job.base, memory, job.aside, job.rare)
        )
    written = (Kind(name, msgspec.Raw(settings)) for name, settings in kinds)
    return Packed(tuple(packed), tuple(written), tuple(layouts))


GPU_TOGETHER = 32
"""Jobs that a worker on a GPU trains at once."""


def jobs_together(engine: EngineSettings) -> int:
    """How many jobs a worker trains at once: on a CPU one."""
    return 1 if engine.device == "cpu" else GPU_TOGETHER


def parts_of(jobs: Sequence[TrainingJob], together: int, workers: int) -> list[range]:
    """Divides jobs, in order, into parts of one base that are trained at once: at most `together` jobs.

    All workers have some, and the same jobs are always divided alike: rounding depends on it.
    """
    most = max(1, min(together, -(-len(jobs) // max(1, workers))))
    parts: list[range] = []
    for number, job in enumerate(jobs):
        before = jobs[parts[-1].start] if parts else job
        if parts and len(parts[-1]) < most and (job.base, job.aside) == (before.base, before.aside):
            parts[-1] = range(parts[-1].start, number + 1)
        else:
            parts.append(range(number, number + 1))
    return parts


def described(jobs: Sequence[TrainingJob]) -> str:
    """The jobs of a part, for an error message."""
    first, others = jobs[0], f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return f"{first.strategy.name} for {first.name} (seed {first.seed}){others}"


def unpack_job(packed: PackedJob, strategy: AnyStrategy, memory: Tensors) -> TrainingJob:
    """The job, with the strategy of its kind number and its memory."""
    return TrainingJob(
        packed.device, packed.name, strategy, packed.seed, packed.base, memory, packed.aside, packed.rare
    )


def size_of(specs: Iterable[TensorSpec]) -> int:
    """Bytes of these tensors, each of which begins at a multiple of 64 bytes."""
    return sum(_padded(spec) for spec in specs)


def places(specs: Iterable[TensorSpec]) -> Iterator[tuple[TensorSpec, int]]:
    """Yields each tensor with the byte that it begins at."""
    start = 0
    for spec in specs:
        yield spec, start
        start += _padded(spec)


def views(buffer: Any, specs: Iterable[TensorSpec], start: int = 0) -> dict[str, NDArray[Any]]:
    """The tensors stored in `buffer` from byte `start` on; they share its memory."""
    return {
        spec.name: np.frombuffer(buffer, spec.dtype, spec.size, start + place).reshape(spec.shape)
        if spec.size
        else np.empty(spec.shape, spec.dtype)
        for spec, place in places(specs)
    }


def specs_of(tensors: Tensors) -> Layout:
    """The specs of these tensors, in their order."""
    return tuple(TensorSpec(name, value.shape, value.dtype.name) for name, value in tensors.items())


def joined(tensors: Tensors) -> NDArray[np.uint8]:
    """All tensors one after another, as `places` says, in one new array of bytes."""
    specs = specs_of(tensors)
    whole = np.zeros(size_of(specs), np.uint8)
    for spec, start in places(specs):
        flat = np.ascontiguousarray(tensors[spec.name]).reshape(-1).view(np.uint8)
        whole[start : start + flat.size] = flat
    return whole


def _written(strategy: AnyStrategy) -> Kind:
    kind = registry.write(strategy)
    try:
        same = registry.is_portable(strategy) and registry.read(kind) == strategy
    except registry.KindError:
        same = False
    if not same:
        raise ExecutorError(f"other processes do not know {strategy}; only executor plain can train it")
    return kind


def _padded(spec: TensorSpec) -> int:
    size = np.dtype(spec.dtype).itemsize * prod(spec.shape)
    return size + -size % ALIGNMENT


class TrainedReply(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A contribution without its tensors, which are stored separately, in the order of `shapes`.

    `memory` is the layout of its memory; None: it has none.
    """

    job: int
    kind: str
    form: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    num_examples: int
    train_loss: float
    memory: Layout | None


class DivergedReply(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A job that ended as `FailedJob`."""

    job: int
    why: str


class WorkerException(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """An exception in a worker: the name of its type, its text, and where it was raised."""

    job: int
    error: str
    text: str
    trace: str


class WorkerOpened(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A worker has opened its inputs; `pid` is its process id."""

    pid: int


Reply = TrainedReply | DivergedReply | WorkerException | WorkerOpened
read_replies = msgspec.msgpack.Decoder(list[Reply]).decode
"""Reads the replies to one message, in the order of its jobs."""


def worker_error(job: int, error: Exception) -> WorkerException:
    """The reply for an exception in a worker; job -1: it was raised before any job."""
    at = f" ({place})" if (place := plugins.place_of(error)) else ""
    return WorkerException(job, type(error).__name__, f"{one_line(error)}{at}", traceback.format_exc())


def reply_of(job: int, result: Result) -> TrainedReply | DivergedReply:
    """The reply that accompanies the tensors and the memory of a result."""
    if isinstance(result, FailedJob):
        return DivergedReply(job, result.why)
    return TrainedReply(
        job,
        result.kind,
        result.variant,
        tuple((name, value.shape) for name, value in result.tensors.items()),
        int(result.num_examples),
        float(result.train_loss),
        None if result.memory is None else specs_of(result.memory),
    )


class ExpectedTensors:
    """The tensors that contributions consist of, computed once for each strategy of a run."""

    def __init__(self, inputs: ExecutorInputs) -> None:
        self._inputs = inputs
        self._expected: dict[int, tuple[AnyStrategy, dict[str, TensorSpec]]] = {}

    def specs(self, strategy: AnyStrategy) -> Mapping[str, TensorSpec]:
        """The tensors' specs by name.

        Raises ModelError where the bundle has no such tensors, ExecutorError for an unknown bundle.
        """
        if id(strategy) not in self._expected:  # the strategy is kept too, so that its id is not reused
            manifest = self._inputs.of(strategy.member).manifest
            specs = {spec.name: spec for spec in kind_statistics.expected(strategy, manifest)}
            self._expected[id(strategy)] = strategy, specs
        return self._expected[id(strategy)][1]

    def size(self, strategy: AnyStrategy) -> int:
        """The most bytes of a contribution's tensors; 0 if the bundle cannot have any (training says so)."""
        try:
            return size_of(self.specs(strategy).values())
        except ModelError:
            return 0

    def result(
        self, reply: Reply, strategy: AnyStrategy, buffer: Any, start: int = 0, memory: Any = b""
    ) -> Result:
        """The result with its tensors in `buffer` and its memory in `memory`, neither of which is copied.

        Raises the error that a `WorkerException` reply names.
        """
        if isinstance(reply, TrainedReply):
            specs = self.specs(strategy)
            layout = [TensorSpec(name, shape, specs[name].dtype) for name, shape in reply.shapes]
            tensors = views(buffer, layout, start)
            state = None if reply.memory is None else views(memory, reply.memory)
            return Update(reply.kind, tensors, reply.num_examples, reply.train_loss, reply.form, state)
        if isinstance(reply, DivergedReply):
            return FailedJob(reply.why)
        raise (
            error_of(reply)
            if isinstance(reply, WorkerException)
            else ExecutorError(f"a worker answered {reply}")
        )


def error_of(broke: WorkerException) -> Exception:
    """The worker's error: a ModelError of the same type, or else an ExecutorError with its text."""
    error_type = getattr(model_errors, broke.error, None)
    if isinstance(error_type, type) and issubclass(error_type, ModelError):
        return error_type(broke.text)
    return ExecutorError(f"a worker failed: {broke.error}: {broke.text}")
