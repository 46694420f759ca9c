"""Where the time of a simulated round goes, by functions of ours that are timed while they are patched.

The time of a part is that of its functions without the functions of other parts that they call. On a GPU each
border waits until the GPU is done, so profiled rounds are slower than others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

SIMULATION, STRATEGIES = "device_runtime.simulation", "device_runtime.strategies"
MANY, BATCHED = "device_runtime.models.torch_engine.many", f"{SIMULATION}.executors.batched_many"
COPIES = "device_runtime.models.torch_engine.copies:TorchCopies"
PARTS: dict[str, tuple[str, ...]] = {
    "choosing": (
        f"{SIMULATION}.clock.sampling:DeviceSampler.ask",
        f"{BATCHED}:BatchedNetworks._planned",
        f"{STRATEGIES}.training.local_training:plan_batches",
    ),
    "samples": (
        f"{SIMULATION}.data.loading:Clients.local",
        f"{SIMULATION}.executors.fleet_samples:FleetSamples.of",
        f"{MANY}:_pooled",
        f"{MANY}:planned_steps",
        "device_runtime.models.torch_engine.place:TorchProcessor.tensor",
    ),
    "steps": (f"{MANY}:train_many", f"{MANY}:_Training.run", f"{SIMULATION}.executors.job:train"),
    "results": (f"{MANY}:_Training.mean_losses", f"{COPIES}.fetched"),
    "checks": (f"{BATCHED}:BatchedNetworks.train", "device_runtime.aggregator.intake.check:update_refusal"),
    "fold": (
        "device_runtime.aggregator.merging.merge_round:RoundMerge.merged",
        f"{COPIES}.sums",
        f"{COPIES}.squares",
    ),
    "evaluation": (f"{SIMULATION}.rounds.learning:RoundEvaluator.__call__",),
}
"""The functions of each part, as "MODULE:NAME"."""


class RoundProfile:
    """The seconds of each part, added up."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """settle: waits until the processor is done."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.missing: list[str] = []  # functions that the code no longer has
        self._settle, self._open, self._since = settle, [], 0.0

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Times the functions of PARTS inside."""
        with ExitStack() as stack:
            for part, names in PARTS.items():
                for name in names:
                    owner, attribute = _place(name)
                    function = getattr(owner, attribute, None)
                    if function is None:
                        self.missing.append(name)
                    else:
                        stack.enter_context(patch.object(owner, attribute, self._timed(part, function)))
            yield

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def _enter(self, part: str) -> None:
        self._note()
        self._open.append(part)

    def _leave(self) -> None:
        self._note()
        self._open.pop()

    def _note(self) -> None:
        """The time since the last border is that of the innermost open part."""
        self._settle()
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def _place(name: str) -> tuple[Any, str]:
    module, _, path = name.partition(":")
    *owners, attribute = path.split(".")
    owner: Any = import_module(module)
    for each in owners:
        owner = getattr(owner, each, None)
    return owner, attribute
