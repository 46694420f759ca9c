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
from device_runtime.models.bundles.bundle import Bundle, unpack
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import one_line
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies import plugins
from device_runtime.strategies.interface.device_half import NO_TENSORS

from . import packing
from .job import ExecutorInputs, FailedJob
from .packing import Layout, PackedJob, Reply, read_replies
from .processes_worker import SharedMemory, WorkerExecutor

Bytes = NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)


class RayInputs(msgspec.Struct, frozen=True, array_like=True):
    """The opening message of a worker; `family`: the names of the other bundles."""

    engine: EngineSettings
    family: tuple[str, ...]
    together: int = 1


class RayJob(msgspec.Struct, frozen=True, array_like=True):
    """A job for a worker: its number in the run, its kind of update, and the layout of its memory."""

    number: int
    kind: Kind
    job: PackedJob
    memory: Layout = ()


class RayJobs(msgspec.Struct, frozen=True, array_like=True):
    """Jobs that are trained at once, the key of their base, and the layout of the tensors sent with it."""

    jobs: tuple[RayJob, ...]
    base: int
    aside: Layout = ()


Answer = tuple[bytes, list[Bytes]]
"""A worker's replies to the jobs of a message; for each the tensors of the result, then its memory."""


class RayWorker:
    """A Ray actor on one core or GPU, with an engine for each model of the family that its jobs use."""

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
            self._executor = WorkerExecutor(self._inputs, opening.together)
        except Exception as error:
            return packing.pack([packing.worker_error(-1, error)])
        self._bases: dict[str, tuple[int, Tensors]] = {}  # key and tensors, by member
        return packing.pack([packing.WorkerOpened(os.getpid())])

    def do(self, text: bytes, base: Bytes, aside: Bytes, *memories: Bytes) -> Answer:
        """Does RayJobs, given their base, the tensors sent with it, and the memory of each."""
        sent = msgspec.msgpack.decode(text, type=RayJobs)
        replies: list[Reply] = []
        arrays: list[Bytes] = []
        try:
            jobs = [
                packing.unpack_job(
                    each.job, self._executor.strategy(each.kind), packing.views(memory, each.memory)
                )
                for each, memory in zip(sent.jobs, memories, strict=True)
            ]
            whole, beside = (
                self._base(jobs[0].strategy.member, sent.base, base),
                packing.views(aside, sent.aside),
            )
            for each, result in zip(sent.jobs, self._executor.run(whole, beside, jobs), strict=True):
                replies.append(packing.reply_of(each.number, result))
                if isinstance(result, FailedJob):
                    arrays += [NOTHING, NOTHING]
                    continue
                left = NOTHING if result.memory is None else packing.joined(result.memory)
                arrays += [packing.joined(result.tensors), left]
        except Exception as error:
            return packing.pack([packing.worker_error(each.number, error) for each in sent.jobs]), []
        return packing.pack(replies), arrays

    def _base(self, member: str, key: int, base: Bytes) -> Tensors:
        """The tensors of a member's base, the same as before where the key is."""
        if self._bases.get(member, (0, NO_TENSORS))[0] != key:
            self._bases[member] = key, packing.views(base, self._inputs.of(member).manifest.stored())
        return self._bases[member][1]

    def _opened(self, bundle: Bytes) -> Bundle:
        """Opens a zipped bundle, in memory where possible, so that no file is left if this is killed."""
        if hasattr(os, "memfd_create"):
            shared = SharedMemory.make()
            self._shared.append(shared)
            shared.write(bundle, 0)
            return Bundle.open(f"/proc/self/fd/{shared.fd}")
        self._folder = getattr(self, "_folder", None) or tempfile.TemporaryDirectory(prefix="device-runtime-")
        return unpack(bundle.tobytes(), Path(tempfile.mkdtemp(dir=self._folder.name)) / "bundle")


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
    """An answer from a worker: each reply with the tensors and the memory of its result.

    None where the worker or the answer was lost, as `why` says.
    """

    worker: int
    ticket: int
    replies: list[tuple[Reply, Bytes, Bytes]] | None
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

    def __init__(self, inputs: ExecutorInputs, address: str | None, cores: int | None, together: int) -> None:
        """Joins the cluster at `address`, or starts one on this machine.

        together: jobs that a worker trains at once.

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
            msgspec.msgpack.encode(RayInputs(inputs.engine, tuple(inputs.family), together)),
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

    def send(self, worker: int, ticket: int, jobs: RayJobs, *arrays: Any) -> None:
        """Sends a worker RayJobs; the arrays of `RayWorker.do` are arrays or `ray.put` references."""
        answer = self._actors[worker].do.remote(msgspec.msgpack.encode(jobs), *arrays)
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
            return RayAnswer(worker, ticket, None, one_line(error))
        text, arrays = (answer, []) if ticket < 0 else answer
        replies = read_replies(text)
        arrays = arrays or [NOTHING] * (2 * len(replies))
        return RayAnswer(worker, ticket, list(zip(replies, arrays[::2], arrays[1::2], strict=True)))

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
