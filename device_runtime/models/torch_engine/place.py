"""Where the torch engine computes: a processor, its settings during a run, and flat buffers on it."""
# mypy: allow-untyped-calls, allow-any-unimported

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.tensors import Flat
from device_runtime.models.engines.base import Watch
from device_runtime.models.errors import EngineError, one_line


def find_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`. Raises EngineError for another, or one that is not here."""
    if name == "cpu":
        return torch.device(name)
    if name.partition(":")[0] != "cuda":
        raise EngineError(f"device is {name!r}, the torch engine runs on cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = name.partition(":")[2] or "0"
    if not (index.isdecimal() and int(index) < count):
        raise EngineError(f"device {name} is not here: torch {torch.__version__} sees {count} GPUs")
    return torch.device("cuda", int(index))


@dataclass(frozen=True)
class Place:
    """A processor, threads inside one operator on the CPU, and who is told of loads and runs."""

    device: torch.device
    threads: int
    watch: Watch | None

    @property
    def on_cpu(self) -> bool:
        """Whether it computes in the memory that numpy sees."""
        return str(self.device.type) == "cpu"

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array's own memory on the CPU if it may be written to, else a copy."""
        own = array if array.flags.writeable else array.copy()
        return torch.from_numpy(own).to(self.device)

    @contextmanager
    def running(self, name: str, graph: Graph, samples: int) -> Iterator[None]:
        """Full float32, the same algorithms each time; what is raised inside becomes an EngineError."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        exact = nullcontext() if self.on_cpu else _exact()
        start = time.perf_counter()
        try:
            with exact:
                yield
        except EngineError:
            raise
        except Exception as error:  # the module's own code runs here
            raise EngineError(f"torch, graph {name} on {samples} samples: {one_line(error)}") from error
        if self.watch is not None:
            self.watch.ran(name, graph, samples, time.perf_counter() - start)


def _exact() -> AbstractContextManager[None]:
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return flags


class Mirror:
    """A flat buffer as tensors of a device: the same memory on the CPU, a copy elsewhere."""

    def __init__(self, flat: Flat, device: torch.device) -> None:
        self._host = torch.from_numpy(flat.vector)
        self.vector = self._host.to(device)
        sizes = [spec.size for spec in flat.specs]
        parts = zip(flat.specs, self.vector.split(sizes), strict=True)
        self.tensors = {spec.name: part.view(spec.shape) for spec, part in parts}

    def fetch(self) -> None:
        """From the flat buffer."""
        if self.vector is not self._host:
            self.vector.copy_(self._host)

    def store(self) -> None:
        """Into the flat buffer."""
        if self.vector is not self._host:
            self._host.copy_(self.vector)
