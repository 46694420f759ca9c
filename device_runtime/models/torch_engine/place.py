"""The processor on which the torch engine computes, with its flat buffers and its layout of images."""
# mypy: allow-untyped-calls, allow-any-unimported

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_runtime.models.bundles.manifest import TRAINING, Graph
from device_runtime.models.bundles.tensors import Flat
from device_runtime.models.engines.base import EngineWatch
from device_runtime.models.errors import EngineError, GpuOutOfMemory, one_line

GPU_SHARE = 0.25
"""The share of a GPU's memory for each use of it by one process, because several may share the GPU.

The uses are: networks that are trained at once, trained copies that wait, and the samples of a fleet.
"""


def find_device(name: str) -> torch.device:
    """The device named `cpu`, `cuda` or `cuda:N`. Raises EngineError for another name or a missing GPU."""
    if name == "cpu":
        return torch.device(name)
    if name.partition(":")[0] != "cuda":
        raise EngineError(f"device is {name!r}, the torch engine runs on cpu, cuda or cuda:N")
    count = gpu_count()
    index = name.partition(":")[2] or "0"
    if not (index.isdecimal() and int(index) < count):
        raise EngineError(f"device {name} is not available: torch {torch.__version__} sees {count} GPUs")
    return torch.device("cuda", int(index))


def gpu_count() -> int:
    """The number of GPUs that torch can use."""
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


@dataclass(frozen=True)
class TorchProcessor:
    """A processor, the number of threads inside one operator on the CPU, and the watch of loads and runs.

    `precision`: of training, see TRAINING_PRECISIONS.
    """

    device: torch.device
    threads: int
    watch: EngineWatch | None
    precision: str = "float32"

    @property
    def on_cpu(self) -> bool:
        """Whether it computes in the main memory, which numpy shares."""
        return str(self.device.type) == "cpu"

    @property
    def gpu_bytes(self) -> int:
        """The memory of the GPU, in bytes."""
        return int(torch.cuda.mem_get_info(self.device)[1])

    @property
    def gpu_share_bytes(self) -> int:
        """The bytes of the GPU's memory that one use of it may take, see GPU_SHARE."""
        return int(GPU_SHARE * self.gpu_bytes)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array's own memory on the CPU if it may be written to, else a copy."""
        own = array if array.flags.writeable else array.copy()
        return torch.from_numpy(own).to(self.device)

    def empty(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Memory without values, of numpy's dtype of this name."""
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=self.device)

    def sent(self, arrays: Sequence[NDArray[Any]]) -> list[Tensor]:
        """Flat arrays of numbers of four bytes, sent in one transfer that nothing waits for."""
        whole = torch.from_numpy(np.concatenate([array.view(np.int32) for array in arrays]))
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        parts = whole.split([array.size for array in arrays])
        return [
            part.view(getattr(torch, array.dtype.name)) for part, array in zip(parts, arrays, strict=True)
        ]

    def free_unused(self) -> None:
        """Gives memory of a GPU that torch keeps unused back."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def running(self, name: str, graph: Graph, samples: int) -> Iterator[None]:
        """Runs the body with the same algorithms each time, and reports it to the watch.

        Training is in the engine's precision, all else in full float32. An exception inside is raised
        as an EngineError.
        """
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        precision = self.precision if name.partition(".")[0] in TRAINING else "float32"
        start = time.perf_counter()
        try:
            with self._algorithms(tf32=precision == "tf32"), self._products(bf16=precision == "bf16"):
                yield
        except EngineError:
            raise
        except torch.OutOfMemoryError as error:
            raise GpuOutOfMemory(f"torch, graph {name} on {samples} samples: {one_line(error)}") from error
        except Exception as error:  # the module's own code runs here
            raise EngineError(f"torch, graph {name} on {samples} samples: {one_line(error)}") from error
        if self.watch is not None:
            self.watch.ran(name, graph, samples, time.perf_counter() - start)

    @contextmanager
    def _algorithms(self, tf32: bool) -> Iterator[None]:
        """On a GPU, the same algorithms each time, with or without TF32."""
        if self.on_cpu:
            yield
            return
        matmul = torch.backends.cuda.matmul
        before, matmul.allow_tf32 = matmul.allow_tf32, tf32
        try:
            with torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32
            ):
                yield
        finally:
            matmul.allow_tf32 = before

    def _products(self, bf16: bool) -> AbstractContextManager[Any]:
        """Products and activations in bfloat16, or nothing."""
        if not bf16:
            return nullcontext()
        cast: AbstractContextManager[Any] = torch.autocast(
            self.device.type, torch.bfloat16, cache_enabled=False
        )
        return cast


class DeviceBuffer:
    """A flat buffer as tensors on a device: the same memory on the CPU, a copy elsewhere."""

    def __init__(self, flat: Flat, device: torch.device) -> None:
        self._host = torch.from_numpy(flat.vector)
        self.vector = self._host.to(device)
        sizes = [spec.size for spec in flat.specs]
        parts = zip(flat.specs, self.vector.split(sizes), strict=True)
        self.tensors = {spec.name: part.view(spec.shape) for spec, part in parts}

    def fetch(self) -> None:
        """Copies from the flat buffer, where it is another memory."""
        if self.vector is not self._host:
            self.vector.copy_(self._host)

    def store(self) -> None:
        """Copies into the flat buffer, where it is another memory."""
        if self.vector is not self._host:
            self._host.copy_(self.vector)


INNERMOST = torch.channels_last
"""The layout of images in which torch trains fastest on a CPU: channels innermost.

Convolutions, pooling and norms keep the layout of their input. A training step takes 0.8 to 0.9 times as long
as with channels outermost (WRN, SqueezeNet, MobileNetV2, DS-CNN, two plain convolutions; as long on ViT).
"""
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)


def channels_innermost(x: Tensor) -> Tensor:
    """Copies images (n, c, h, w) to INNERMOST, also those of one channel; others stay as they are."""
    if x.dim() != 4 or not x.is_floating_point():
        return x
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=INNERMOST).copy_(x)


def keep_layout(module: nn.Module) -> None:
    """Changes the module's pooling layers so that gradients pass them in the layout of their outputs.

    A flattening after them gives back gradients with channels outermost, and all layers below, whose maps
    are larger, would copy from one layout to the other. A group norm with nothing trained below it works on
    channels outermost: torch 2.13 reads a null pointer if the gradient of its input is not needed.
    """
    for part in module.modules():
        if isinstance(part, POOLS):
            part.register_forward_hook(_keep)
        elif isinstance(part, nn.GroupNorm):
            part.register_forward_pre_hook(_outermost)
            part.register_forward_hook(_back)


def _outermost(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    return None if inputs[0].requires_grad else (inputs[0].contiguous(), *inputs[1:])


def _back(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
    return output.contiguous(memory_format=INNERMOST) if output.dim() == 4 else None


def _keep(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
    if output.requires_grad and output.is_contiguous(memory_format=INNERMOST):
        output.register_hook(_innermost)


def _innermost(grad: Tensor) -> Tensor:
    return grad.contiguous(memory_format=INNERMOST)
