"""Records steps that come often in the same shape, and plays them again: on a GPU as CUDA graphs."""
# mypy: allow-untyped-calls, allow-any-unimported

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from device_runtime.models.errors import one_line

from .place import TorchProcessor
from .steps import MicroBatch, Step

log = logging.getLogger(__name__)

RECORDED_FROM = 64
"""Steps of one shape from which they are recorded.

Not measured. A recording waits for the GPU, collects garbage, and takes about as long as a step on the host.
"""
PLAIN_FIRST = 2
"""Steps of a shape that run plainly before it is recorded: libraries load and choose kernels in them."""

Shape = tuple[tuple[object, ...], ...]


class Recorder(Protocol):
    """Records work on memory that stays where it is."""

    def aside(self) -> AbstractContextManager[None]:
        """Runs the work inside as it will be recorded."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records the work, which may not be done by that. Gives what does it again, any number of times."""


class CudaRecorder:
    """Records CUDA graphs, which share the memory between their kernels."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """In the stream in which it will be recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Recorder`."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        replay: Callable[[], None] = graph.replay
        return replay


def recorder_of(place: TorchProcessor) -> Recorder | None:
    """What records steps on this processor; None: nothing does."""
    return CudaRecorder(place.device) if place.device.type == "cuda" else None


class StepPlayer:
    """Runs steps by `body`, those of a shape that comes often by a recording of it.

    `body` may change its memory in place, but neither move it nor wait for the processor.
    """

    def __init__(self, body: Callable[[Step], None], recorder: Recorder | None) -> None:
        self._body, self._recorder = body, recorder
        self._plain: Counter[Shape] = Counter()
        self._recordings: dict[Shape, tuple[Step, Callable[[], None]]] = {}

    def run(self, steps: Sequence[Step]) -> None:
        """Runs the steps in their order."""
        often = Counter(map(_shape, steps))
        for step in steps:
            shape = _shape(step)
            if self._recorder is None or often[shape] < RECORDED_FROM:
                self._body(step)
            elif self._plain[shape] < PLAIN_FIRST:
                self._plain[shape] += 1
                with self._recorder.aside():
                    self._body(step)
            else:
                self._play(shape, step, self._recorder)

    def _play(self, shape: Shape, step: Step, recorder: Recorder) -> None:
        if shape not in self._recordings:
            template = tuple(_copied(batch) for batch in step)
            try:
                self._recordings[shape] = template, recorder.record(lambda: self._body(template))
            except Exception as error:  # whatever CUDA or an operator refuses
                log.warning("steps are not recorded, but run one by one: %s", one_line(error))
                self._recorder = None
                self._body(step)
                return
        template, replay = self._recordings[shape]
        for target, source in zip(template, step, strict=True):
            for to, value in zip(_tensors(target), _tensors(source), strict=True):
                to.copy_(value)
        replay()


def _shape(step: Step) -> Shape:
    return tuple((*batch.rows.shape, isinstance(batch.at, Tensor), batch.padded) for batch in step)


def _tensors(batch: MicroBatch) -> list[Tensor]:
    of_rows = [batch.rows, batch.shares, batch.counts]
    return [*of_rows, batch.at] if isinstance(batch.at, Tensor) else of_rows


def _copied(batch: MicroBatch) -> MicroBatch:
    at = batch.at.clone() if isinstance(batch.at, Tensor) else batch.at
    return MicroBatch(at, batch.rows.clone(), batch.shares.clone(), batch.counts.clone(), batch.padded)
