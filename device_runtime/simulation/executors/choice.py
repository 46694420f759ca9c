"""Chooses the executor of a run: the one asked for, or the fastest for its kinds, model and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.engines.available import engine_choice
from device_runtime.models.errors import EngineError
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.profiles.cost import MissingGraph
from device_runtime.profiles.machine import usable_cores
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.training.local_training import TakesFeatures, TrainsHead
from device_runtime.strategies.training.workload import workload

from .job import Executor, PlainExecutor, World
from .processes import Processes

AUTO = "auto"
NAMES = ("plain", "batched", "processes", "ray")
HEAVY_FLOPS = 10e6
"""Operations of a job from which processes pay off: 2 ms or more on one core.

A job in another process takes 0.2 ms more, and starting the process takes seconds.
"""
SMALL_STEP_FLOPS = 6_000_000
"""Operations of one sample's training step up to which `models.torch_engine.many` pays off.

It then gains 1.5 to 2.5 times on one core.
"""
FEW_CORES = 2
"""Up to this many cores, small networks gain more by batched training than by a core each."""

# The operations of a job are the same on every device.
_ANY_DEVICE = DeviceProfile("any", 1, Memory(0, 0), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 1))


@dataclass(frozen=True)
class ExecutorWish:
    """The wanted executor: one of NAMES, or AUTO.

    `workers` is for processes and ray; `address` is that of a Ray cluster.
    """

    name: str = AUTO
    workers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class ExecutorChoice:
    """The chosen executor. `name` is the one that trains job by job: "plain", "processes" or "ray".

    With `batched` it gets only the jobs that gain nothing by batched training; with `networks` whole networks
    are batched too. `why` is the reason, for people.
    """

    name: str
    batched: bool
    networks: bool
    why: str


def names() -> tuple[str, ...]:
    """The names that an ExecutorWish may have."""
    return (AUTO, *NAMES)


def make(world: World, wish: ExecutorWish, kinds: Sequence[AnyStrategy]) -> Executor:
    """Makes the executor for jobs of these kinds. Raises ExecutorError, EngineError, BundleError."""
    return make_chosen(world, wish, choose(world, wish, kinds))


def choose(world: World, wish: ExecutorWish, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    """Chooses without starting anything or importing an engine. Raises ExecutorError for an invalid wish."""
    if wish.name not in names():
        raise ExecutorError(f"there is no executor {wish.name!r}; there are {', '.join(names())}")
    if wish.address is not None and wish.name not in (AUTO, "ray"):
        raise ExecutorError(f"executor {wish.name} takes no address ({wish.address}): only ray does")
    if wish.name == "batched":
        return ExecutorChoice("plain", True, True, "as asked for")
    if wish.name != AUTO:
        return ExecutorChoice(wish.name, False, False, "as asked for")
    if wish.address is not None:
        return ExecutorChoice("ray", False, False, f"a Ray cluster is named: {wish.address}")
    return _fastest(world, wish.workers or usable_cores(), kinds)


def make_chosen(world: World, wish: ExecutorWish, choice: ExecutorChoice) -> Executor:
    """Makes the chosen executor. Raises as `make` does."""
    if choice.name == "ray":
        from .ray_executor import RayExecutor

        return RayExecutor(world, wish.address, wish.workers)
    single: Executor = Processes(world, wish.workers) if choice.name == "processes" else PlainExecutor(world)
    if not choice.batched:
        return single
    from .batched import Batched

    return Batched(world, single, networks=None if choice.networks else False)


def _fastest(world: World, cores: int, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    manifest = world.bundle.manifest
    together = [kind for kind in kinds if _on_features(kind, manifest)]
    others = [kind for kind in kinds if kind not in together]
    heaviest = max((job_flops(world, kind) for kind in others), default=0.0)
    heavy = heaviest >= HEAVY_FLOPS and cores > 1 and world.engine.device == "cpu"
    networks = bool(others) and _small(world) and not (heavy and cores > FEW_CORES)
    why = [f"{kind.name} of many devices is one matrix product" for kind in together]
    why += ["steps of so small a network are batched"] if networks else []
    batched = bool(why)
    work = f"{heaviest / 1e6:.3g} MFLOP a job"
    if not others:
        return ExecutorChoice("plain", batched, False, "; ".join(why) or "there is nothing to train")
    if heavy:
        why.append(f"{work}, {cores} cores")
    elif world.engine.device != "cpu":
        why.append(f"all jobs share {world.engine.device}")
    elif cores < 2:
        why.append("one core is usable")
    else:
        why.append(f"{work}, less than passing it to another process takes")
    return ExecutorChoice("processes" if heavy else "plain", batched, networks, "; ".join(why))


def job_flops(world: World, kind: AnyStrategy) -> float:
    """Predicted operations of one job of a kind's costliest form, on a device with a mean number of samples.

    0 for a kind that the bundle cannot do.
    """
    return max(_form_flops(world, form) for form in kind.variants())


def _form_flops(world: World, form: AnyStrategy) -> float:
    if form.member not in world.bundles:
        return 0.0
    manifest = world.of(form.member).manifest
    labels, samples = len(manifest.labels), -(-len(world.clients.order) // max(1, len(world.clients)))
    counts = tuple(samples // labels + (label < samples % labels) for label in range(labels))
    try:
        return form.cost(workload(manifest, counts), _ANY_DEVICE).flops
    except MissingGraph:
        return 0.0


def _on_features(kind: AnyStrategy, manifest: Manifest) -> bool:
    if kind.member:
        return False
    trains = isinstance(kind, TrainsHead) and kind.trains_head(manifest)
    return trains or isinstance(kind, TakesFeatures)


def _small(world: World) -> bool:
    """Whether the engine is torch and the network small enough to gain by batched training."""
    try:
        engine = engine_choice(world.bundle, world.engine.engine).name
    except EngineError:
        return False  # reported when the engine is opened
    graph = world.bundle.manifest.graphs.get("train.all")
    if engine != "torch" or graph is None or graph.statistics:
        return False
    return world.engine.device != "cpu" or graph.flops <= SMALL_STEP_FLOPS
