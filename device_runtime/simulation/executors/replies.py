"""What workers answer: how a job ended, and how its result and its memory lie."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from device_runtime.models import errors as model_errors
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.errors import ModelError, one_line
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.statistics import class_statistics
from device_runtime.strategies.training.device_half import Contribution

from .job import Failed, Result, World
from .packing import Layout, size_of, specs_of, views


class Trained(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A contribution without its tensors, which lie elsewhere in the order of their names and `shapes`.

    `memory` says how its memory lies; None: there is none.
    """

    job: int
    kind: str
    form: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    num_examples: int
    train_loss: float
    memory: Layout | None


class Diverged(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """See `Failed`."""

    job: int
    why: str


class Broke(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """An exception in a worker: the name of its type, its text, and where it was raised."""

    job: int
    error: str
    text: str
    trace: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A worker has opened its world; `pid` is its process."""

    pid: int


Reply = Trained | Diverged | Broke | Ready
read_reply = msgspec.msgpack.Decoder(Reply).decode


def broke(job: int, error: Exception) -> Broke:
    """What is told of an exception in a worker; -1 for one that came before any job."""
    return Broke(job, type(error).__name__, one_line(error), traceback.format_exc())


def headline(job: int, result: Result) -> Trained | Diverged:
    """The reply that goes with the tensors of a result, and with its memory."""
    if isinstance(result, Failed):
        return Diverged(job, result.why)
    return Trained(
        job,
        result.kind,
        result.form,
        tuple((name, value.shape) for name, value in result.tensors.items()),
        int(result.num_examples),
        float(result.train_loss),
        None if result.memory is None else specs_of(result.memory),
    )


class Expected:
    """What contributions consist of, found out once for each strategy of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[int, tuple[AnyStrategy, dict[str, TensorSpec]]] = {}

    def specs(self, strategy: AnyStrategy) -> Mapping[str, TensorSpec]:
        """By name. Raises ModelError where the bundle has no such tensors, ExecutorError without a bundle."""
        if id(strategy) not in self._known:  # kept beside it, so that its identity stays its own
            manifest = self._world.of(strategy.member).manifest
            specs = {spec.name: spec for spec in class_statistics.expected(strategy, manifest)}
            self._known[id(strategy)] = strategy, specs
        return self._known[id(strategy)][1]

    def size(self, strategy: AnyStrategy) -> int:
        """Bytes of a contribution's tensors, at most; 0 where the bundle cannot have any, which training will
        say.
        """
        try:
            return size_of(self.specs(strategy).values())
        except ModelError:
            return 0

    def result(
        self, reply: Reply, strategy: AnyStrategy, buffer: Any, start: int = 0, memory: Any = b""
    ) -> Result:
        """The result whose tensors lie in `buffer`, and its memory in `memory`; it shares theirs.

        Raises what broke.
        """
        if isinstance(reply, Trained):
            specs = self.specs(strategy)
            layout = [TensorSpec(name, shape, specs[name].dtype) for name, shape in reply.shapes]
            tensors = views(buffer, layout, start)
            kept = None if reply.memory is None else views(memory, reply.memory)
            return Contribution(reply.kind, tensors, reply.num_examples, reply.train_loss, reply.form, kept)
        if isinstance(reply, Diverged):
            return Failed(reply.why)
        raise error_of(reply) if isinstance(reply, Broke) else ExecutorError(f"a worker answered {reply}")


def error_of(broke: Broke) -> Exception:
    """A ModelError as it was raised; anything else as an ExecutorError that says what it was."""
    known = getattr(model_errors, broke.error, None)
    if isinstance(known, type) and issubclass(known, ModelError):
        return known(broke.text)
    return ExecutorError(f"a worker gave up: {broke.error}: {broke.text}")
