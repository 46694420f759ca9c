"""One simulated device's training, and how it is done plainly: by the device's own code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from models.bundle import Bundle
from models.engine import DeviceModel
from models.engines import EngineWish
from models.errors import TensorError
from models.tensors import Tensors, check
from simulation.clients import Clients
from strategies.kind import AnyStrategy, Contribution, Run


@dataclass(frozen=True)
class World:
    """What every executor has: the bundle, each device's samples, the engine to train on."""

    bundle: Bundle
    clients: Clients
    engine: EngineWish = field(default_factory=EngineWish)


@dataclass(frozen=True)
class Job:
    """Device number `device`, called `name`, trains `strategy` from base model number `base`.

    `seed` is the round's, shared by its devices.
    """

    device: int
    name: str
    strategy: AnyStrategy
    seed: int
    base: int


@dataclass(frozen=True)
class Failed:
    """A job whose training diverged: what a device would have found out by itself."""

    why: str


Result = Contribution | Failed


class Executor(Protocol):
    """Trains many devices. Equal jobs give equal results, whatever else is run beside them."""

    @property
    def name(self) -> str:
        """As on the command line, with what it works with: "processes (2)"."""

    def run(self, bases: Mapping[int, Tensors], jobs: Sequence[Job]) -> Iterator[Result]:
        """The result of each job, in the order of `jobs`; `bases` has every base model that they name.

        The tensors of a result are valid until the next one is asked for. Raises ModelError for a bundle
        that cannot do a job, ExecutorError when the workers are gone.
        """

    def close(self) -> None:
        """Lets go of workers and memory. May be called twice."""


def train(model: DeviceModel, world: World, job: Job) -> Result:
    """One job by the device's own code; `model` holds its base already. The deadline was judged before."""
    run = Run(job.seed, job.name, clock=lambda: 0.0, deadline=inf)
    contribution = job.strategy.train(model, world.clients.local(job.device, model.manifest.input), run)
    try:
        check(contribution.tensors, job.strategy.expected(model.manifest))
    except TensorError as error:
        return Failed(str(error))
    return contribution
