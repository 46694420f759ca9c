"""Which executor trains a run: the one that was asked for, or what is there and pays."""

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
"""Of one job: 2 ms or more on one core. A job in another process costs 0.2 ms more, and its start seconds."""
SMALL_STEP_FLOPS = 6_000_000
"""Of one sample's training step: up to here `models.torch_engine.many` gains 1.5 to 2.5 times on one core."""
FEW_CORES = 2
"""Up to so many, small networks gain more by being trained together than on cores of their own."""

# Operations of a job are the same on every device.
_ANYONE = DeviceProfile("any", 1, Memory(0, 0), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 1))


@dataclass(frozen=True)
class ExecutorWish:
    """One of NAMES, or AUTO; `workers` of processes and ray; `address` of a Ray cluster."""

    name: str = AUTO
    workers: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class ExecutorChoice:
    """`name` trains one by one ("plain", "processes", "ray"); with `batched` only what does not gain by being
    trained together, which for whole networks is looked for if `networks`. `why` is for the reader.
    """

    name: str
    batched: bool
    networks: bool
    why: str


def names() -> tuple[str, ...]:
    """What may be wished for."""
    return (AUTO, *NAMES)


def make(world: World, wish: ExecutorWish, kinds: Sequence[AnyStrategy]) -> Executor:
    """The executor for jobs of these kinds. Raises ExecutorError, EngineError, BundleError."""
    return made(world, wish, choose(world, wish, kinds))


def choose(world: World, wish: ExecutorWish, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    """Nothing is started, and no engine imported. Raises ExecutorError for a wish that cannot be meant."""
    if wish.name not in names():
        raise ExecutorError(f"there is no executor {wish.name!r}; there are {', '.join(names())}")
    if wish.address is not None and wish.name not in (AUTO, "ray"):
        raise ExecutorError(f"executor {wish.name} has no address; ray has: {wish.address} is for it")
    if wish.name == "batched":
        return ExecutorChoice("plain", True, True, "as asked for")
    if wish.name != AUTO:
        return ExecutorChoice(wish.name, False, False, "as asked for")
    if wish.address is not None:
        return ExecutorChoice("ray", False, False, f"a Ray cluster is named: {wish.address}")
    return _best(world, wish.workers or usable_cores(), kinds)


def made(world: World, wish: ExecutorWish, choice: ExecutorChoice) -> Executor:
    """What was chosen. Raises as `make` does."""
    if choice.name == "ray":
        from .ray_executor import RayExecutor

        return RayExecutor(world, wish.address, wish.workers)
    single: Executor = Processes(world, wish.workers) if choice.name == "processes" else PlainExecutor(world)
    if not choice.batched:
        return single
    from .batched import Batched

    return Batched(world, single, networks=None if choice.networks else False)


def _best(world: World, cores: int, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    manifest = world.bundle.manifest
    together = [kind for kind in kinds if _on_features(kind, manifest)]
    others = [kind for kind in kinds if kind not in together]
    heaviest = max((job_flops(world, kind) for kind in others), default=0.0)
    heavy = heaviest >= HEAVY_FLOPS and cores > 1 and world.engine.device == "cpu"
    networks = bool(others) and _small(world) and not (heavy and cores > FEW_CORES)
    why = [f"{kind.name} of many devices is one product" for kind in together]
    why += ["steps of so small a network are taken together"] if networks else []
    batched = bool(why)
    work = f"{heaviest / 1e6:.3g} MFLOP a job"
    if not others:
        return ExecutorChoice("plain", batched, False, "; ".join(why) or "there is nothing to train")
    if heavy:
        why.append(f"{work}, {cores} cores")
    elif world.engine.device != "cpu":
        why.append(f"{world.engine.device} is one for all")
    elif cores < 2:
        why.append("one core is usable")
    else:
        why.append(f"{work} is less than it takes to hand it to another process")
    return ExecutorChoice("processes" if heavy else "plain", batched, networks, "; ".join(why))


def job_flops(world: World, kind: AnyStrategy) -> float:
    """Predicted operations of one job on a device of mean size, of the form of a kind that takes most; 0 for
    a kind that the bundle cannot do.
    """
    return max(_form_flops(world, form) for form in kind.variants())


def _form_flops(world: World, form: AnyStrategy) -> float:
    if form.member not in world.bundles:
        return 0.0
    manifest = world.of(form.member).manifest
    labels, samples = len(manifest.labels), -(-len(world.clients.order) // max(1, len(world.clients)))
    counts = tuple(samples // labels + (label < samples % labels) for label in range(labels))
    try:
        return form.cost(workload(manifest, counts), _ANYONE).flops
    except MissingGraph:
        return 0.0


def _on_features(kind: AnyStrategy, manifest: Manifest) -> bool:
    if kind.member:
        return False
    trains = isinstance(kind, TrainsHead) and kind.trains_head(manifest)
    return trains or isinstance(kind, TakesFeatures)


def _small(world: World) -> bool:
    """Whether torch, where it is the engine, trains many such networks faster together: by their work."""
    try:
        engine = engine_choice(world.bundle, world.engine.engine).name
    except EngineError:
        return False  # said by whoever opens it
    graph = world.bundle.manifest.graphs.get("train.all")
    if engine != "torch" or graph is None or graph.statistics:
        return False
    return world.engine.device != "cpu" or graph.flops <= SMALL_STEP_FLOPS
