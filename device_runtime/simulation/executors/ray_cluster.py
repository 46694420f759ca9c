"""Workers on a Ray cluster: actors on any node, which may disappear at any time.

Ray is imported only when it is asked for. Only bytes, numbers and numpy arrays pass between this process and
the actors.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Kind
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle, unpack
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import one_line
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies import plugins
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

from . import packing
from .job import ExecutorInputs, FailedJob, train
from .packing import Layout, PackedJob, Reply, read_reply
from .processes_worker import SharedMemory

Bytes = NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)


class RayInputs(msgspec.Struct, frozen=True, array_like=True):
    """The opening message of a worker: the engine, and the names of the family's other bundles."""

    engine: EngineSettings
    family: tuple[str, ...]


class RayJob(msgspec.Struct, frozen=True, array_like=True):
    """A single job for a worker: its number in the run, its kind of update, and the key of its base.

    `memory` and `aside` are the layouts of these tensors.
    """

    number: int
    kind: Kind
    job: PackedJob
    base: int
    memory: Layout = ()
    aside: Layout = ()


Answer = tuple[bytes, Bytes, Bytes]
"""A worker's answer: the reply, the tensors of the result, and its memory."""


class RayWorker:
    """A Ray actor on one core, with an engine for each model of the family that its jobs use."""

    def open(self, text: bytes, *arrays: NDArray[Any]) -> bytes:
        """Opens a RayInputs, the four arrays of Clients, and the zipped bundles.

        Returns WorkerOpened or WorkerException, packed.
        """
        try:
            opening = msgspec.msgpack.decode(text, type=RayInputs)
            self._shared: list[SharedMemory] = []
            x, y, order, offsets, *packed = arrays
            main, *others = [self._opened(bundle) for bundle in packed]
            family = dict(zip(opening.family, others, strict=True))
            self._inputs = ExecutorInputs(main, Clients(x, y, order, offsets), opening.engine, family)
            self._models = {"": open_model(main, opening.engine)}
        except Exception as error:
            return packing.pack(packing.worker_error(-1, error))
        self._strategies: dict[tuple[str, bytes], AnyStrategy] = {}
        self._loaded: dict[str, int] = {}
        return packing.pack(packing.WorkerOpened(os.getpid()))

    def do(self, text: bytes, base: Bytes, memory: Bytes, aside: Bytes) -> Answer:
        """Does a RayJob, given its base, memory and the tensors sent with the base."""
        ray_job = msgspec.msgpack.decode(text, type=RayJob)
        try:
            strategy = self._strategy(ray_job.kind)
            model = self._holding(strategy.member, ray_job.base, base)
            job = packing.unpack_job(ray_job.job, strategy, packing.views(memory, ray_job.memory))
            result = train(model, self._inputs, job, packing.views(aside, ray_job.aside))
            reply = packing.pack(packing.reply_of(ray_job.number, result))
            if isinstance(result, FailedJob):
                return reply, NOTHING, NOTHING
            left = NOTHING if result.memory is None else packing.joined(result.memory)
            return reply, packing.joined(result.tensors), left
        except Exception as error:
            return packing.pack(packing.worker_error(ray_job.number, error)), NOTHING, NOTHING

    def _holding(self, member: str, key: int, base: Bytes) -> DeviceModel:
        """The model of this member with this base."""
        bundle = self._inputs.of(member)
        if member not in self._models:
            self._models[member] = open_model(bundle, self._inputs.engine)
        if self._loaded.get(member) != key:
            self._loaded.pop(member, None)
            self._models[member].load(packing.views(base, bundle.manifest.stored()))
            self._loaded[member] = key
        return self._models[member]

    def _opened(self, bundle: Bytes) -> Bundle:
        """Opens a zipped bundle, in memory where possible, so that no file is left if this is killed."""
        if hasattr(os, "memfd_create"):
            shared = SharedMemory.make()
            self._shared.append(shared)
            shared.write(bundle, 0)
            return Bundle.open(f"/proc/self/fd/{shared.fd}")
        self._folder = getattr(self, "_folder", None) or tempfile.TemporaryDirectory(prefix="device-runtime-")
        return unpack(bundle.tobytes(), Path(tempfile.mkdtemp(dir=self._folder.name)) / "bundle")

    def _strategy(self, kind: Kind) -> AnyStrategy:
        key = kind.name, bytes(kind.settings)
        if key not in self._strategies:
            self._strategies[key] = registry.read(kind)
        return self._strategies[key]


GPU_PARTS = 10_000
"""The parts of a GPU that Ray tells apart."""
START_S = 120.0
"""Seconds to wait for an answer of any worker, before a cluster without a ready worker is an error."""


def import_ray() -> Any:
    """Imports Ray, without its usage reports. Raises ExecutorError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of a future change
    try:
        import ray
    except ImportError as error:
        says = f"Ray is not installed ({one_line(error)}): pip install 'device-runtime[ray]'"
        raise ExecutorError(says) from error
    return ray


@dataclass(frozen=True)
class RayAnswer:
    """An answer from a worker; `reply` is None where the worker or the answer was lost, as `why` says."""

    worker: int
    ticket: int
    reply: Reply | None
    tensors: Bytes
    memory: Bytes
    why: str = ""


def placement(workers: int, gpus: float) -> dict[str, Any]:
    """Ray's options for each of `workers`: a core, and its share of a GPU where `gpus` of them are used.

    The shares of a GPU are equal: 3 workers on 2 GPUs have half of one each.
    """
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
    if gpus:
        options["num_gpus"] = floor(GPU_PARTS / ceil(workers / gpus)) / GPU_PARTS
    return options


class Cluster:
    """The workers of a Ray cluster by number, one a core, and the answers that they still owe."""

    def __init__(self, inputs: ExecutorInputs, address: str | None, cores: int | None) -> None:
        """Joins the cluster at `address`, or starts one on this machine.

        Raises ExecutorError, also for engines on `cuda` where no node has a GPU.
        """
        self.ray = import_ray()
        self._actors: dict[int, Any] = {}
        self._arguments: list[Any] = []
        self._flying: dict[Any, tuple[int, int]] = {}  # answers on their way: worker and ticket
        self._own = not self.ray.is_initialized()
        if self._own:
            self._join(address, cores)
        self._on_gpus = inputs.engine.device == "cuda"
        if self._on_gpus and not self.gpus():
            self.close()
            raise ExecutorError("device is cuda, and no node of the Ray cluster has a GPU")
        clients = inputs.clients
        arrays = (clients.x, clients.y, clients.order, clients.offsets)
        bundles = (np.frombuffer(bundle.packed(), np.uint8) for bundle in inputs.bundles.values())
        self._arguments = [
            msgspec.msgpack.encode(RayInputs(inputs.engine, tuple(inputs.family))),
            *(self.ray.put(np.asarray(array)) for array in (*arrays, *bundles)),
        ]
        self._numbers = 0

    def cores(self) -> int:
        """The cores of all nodes that are alive."""
        return self._total("CPU")

    def gpus(self) -> int:
        """The GPUs of all nodes that are alive."""
        return self._total("GPU")

    def places(self) -> int:
        """How many workers there should be if no number is given, 1 or more: one a core, or one a GPU."""
        return max(1, self.gpus() if self._on_gpus else self.cores())

    def _total(self, resource: str) -> int:
        nodes = [node for node in self.ray.nodes() if node["Alive"]]
        return int(sum(node["Resources"].get(resource, 0) for node in nodes))

    def start_worker(self, workers: int) -> int:
        """Asks for one of `workers`; it answers with ticket -1 when a core is free and it has started.

        On `cuda` Ray shows it one GPU of its node, so that `cuda` is another GPU for each.
        """
        self._numbers += 1
        placed = placement(workers, self.gpus() if self._on_gpus else 0)
        if own := plugins.sources():
            placed["runtime_env"] = {"env_vars": {plugins.VARIABLE: json.dumps(own)}}
        actor = self._actors[self._numbers] = self.ray.remote(RayWorker).options(**placed).remote()
        self._flying[actor.open.remote(*self._arguments)] = self._numbers, -1
        return self._numbers

    def send(self, worker: int, ticket: int, ray_job: RayJob, *arrays: Any) -> None:
        """Sends a worker a RayJob; base, memory and aside are arrays or `ray.put` references."""
        answer = self._actors[worker].do.remote(msgspec.msgpack.encode(ray_job), *arrays)
        self._flying[answer] = worker, ticket

    def next(self) -> list[RayAnswer]:
        """Waits for an answer and returns what came; empty after START_S seconds without any."""
        came, _ = self.ray.wait(list(self._flying), num_returns=1, timeout=START_S)
        return [self._returned(ref) for ref in came]

    def remove_worker(self, worker: int) -> None:
        """Removes a worker that has died or does not answer."""
        with suppress(Exception):
            self.ray.kill(self._actors.pop(worker))

    def close(self) -> None:
        """Ends the workers, and the cluster if it was started here."""
        actors = list(self._actors.values())
        self._actors.clear()
        self._flying.clear()
        for actor in actors:
            with suppress(Exception):
                self.ray.kill(actor)
        self._arguments.clear()
        if self._own:
            self.ray.shutdown()

    def _returned(self, ref: Any) -> RayAnswer:
        worker, ticket = self._flying.pop(ref)
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(ref)
        except errors.RayTaskError as error:
            raise ExecutorError(f"a Ray worker failed: {one_line(error.cause or error)}") from error
        except errors.RayError as error:
            return RayAnswer(worker, ticket, None, NOTHING, NOTHING, one_line(error))
        text, tensors, memory = (answer, NOTHING, NOTHING) if ticket < 0 else answer
        return RayAnswer(worker, ticket, read_reply(text), tensors, memory)

    def _join(self, address: str | None, cores: int | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        here = {
            "address": "local",  # never a cluster that happens to run here
            "num_cpus": cores or usable_cores(),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
        try:
            self.ray.init(**quiet, **(here if address is None else {"address": address}))
        except Exception as error:
            where = "on this machine" if address is None else f"at {address}"
            raise ExecutorError(f"no Ray cluster {where}: {one_line(error)}") from error
