"""Chooses the executor of a run: the one asked for, or the fastest for its kinds, model and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_runtime.models.available_engines.available import engine_choice
from device_runtime.models.errors import EngineError
from device_runtime.models.networks.own import is_portable
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.profiles.cost import MissingGraph
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.training.local_training import is_planned, takes_features
from device_runtime.strategies.training.workload import workload

from .batched_many import is_faster_together
from .job import Executor, ExecutorInputs, PlainExecutor
from .processes import Processes

AUTO = "auto"
NAMES = ("plain", "batched", "processes", "ray")
HEAVY_FLOPS = 10e6
"""Operations of a job from which processes pay off: 2 ms or more on one core.

A job in another process takes 0.2 ms more, and starting the process takes seconds.
"""
FEW_CORES = 2
"""Up to this many cores, small networks gain more by batched training than by one core for each network."""

# The operations of a job are the same on every device.
_ANY_DEVICE = DeviceProfile("any", 1, Memory(0, 0), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 1))


@dataclass(frozen=True)
class ExecutorRequest:
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
    """The names that an ExecutorRequest may have."""
    return (AUTO, *NAMES)


def make(inputs: ExecutorInputs, request: ExecutorRequest, kinds: Sequence[AnyStrategy]) -> Executor:
    """Makes the executor for jobs of these kinds. Raises ExecutorError, EngineError, BundleError."""
    choice = choose(inputs, request, kinds)
    if choice.name == "ray":
        from .ray_executor import RayExecutor

        return RayExecutor(inputs, request.address, request.workers)
    single: Executor = (
        Processes(inputs, request.workers) if choice.name == "processes" else PlainExecutor(inputs)
    )
    if not choice.batched:
        return single
    from .batched import Batched

    return Batched(inputs, single, networks=None if choice.networks else False)


def choose(inputs: ExecutorInputs, request: ExecutorRequest, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    """Chooses; starts nothing and imports no engine. Raises ExecutorError for an invalid request."""
    if request.name not in names():
        raise ExecutorError(f"there is no executor {request.name!r}; there are {', '.join(names())}")
    if request.address is not None and request.name not in (AUTO, "ray"):
        raise ExecutorError(f"executor {request.name} takes no address ({request.address}): only ray does")
    elsewhere = request.address is not None or request.name in ("processes", "ray")
    here = [source for source in inputs.engine.own_code if not is_portable(source)]
    if elsewhere and here:
        what = "module" if here[0] == inputs.engine.module else "loss"
        raise ExecutorError(
            f"executor {request.name} trains in other processes, which have no {what} {here[0][1:]}: "
            "name it by FILE.py:NAME, or take executor auto, plain or batched"
        )
    if request.name == "batched":
        return ExecutorChoice("plain", True, True, "as asked for")
    if request.name != AUTO:
        return ExecutorChoice(request.name, False, False, "as asked for")
    if request.address is not None:
        return ExecutorChoice("ray", False, False, f"a Ray cluster is named: {request.address}")
    return _fastest(inputs, request.workers or usable_cores(), kinds)


def _fastest(inputs: ExecutorInputs, cores: int, kinds: Sequence[AnyStrategy]) -> ExecutorChoice:
    manifest = inputs.bundle.manifest
    together = [kind for kind in kinds if not kind.member and takes_features(kind, manifest)]
    others = [kind for kind in kinds if kind not in together]
    heaviest = max((job_flops(inputs, kind) for kind in others), default=0.0)
    here = [kind.name for kind in others if not registry.is_portable(kind)]
    here += [source[1:] for source in inputs.engine.own_code if not is_portable(source)]
    heavy = heaviest >= HEAVY_FLOPS and cores > 1 and inputs.engine.device == "cpu" and not here
    networks = _are_batched(inputs, others) and not (heavy and cores > FEW_CORES)
    why = [f"{kind.name} of many devices is one matrix product" for kind in together]
    why += ["steps of many networks are batched"] if networks else []
    batched = bool(why)
    work = f"{heaviest / 1e6:.3g} MFLOP a job"
    if not others:
        return ExecutorChoice("plain", batched, False, "; ".join(why) or "there is nothing to train")
    if heavy:
        why.append(f"{work}, {cores} cores")
    elif here:
        why.append(f"only this process knows {', '.join(here)}")
    elif inputs.engine.device != "cpu":
        why.append(f"all jobs share {inputs.engine.device}")
    elif cores < 2:
        why.append("one core is usable")
    else:
        why.append(f"{work}, less than passing it to another process takes")
    return ExecutorChoice("processes" if heavy else "plain", batched, networks, "; ".join(why))


def job_flops(inputs: ExecutorInputs, kind: AnyStrategy) -> float:
    """Predicted operations of one job of a kind's costliest form, on a device with a mean number of samples.

    0 for a kind that the bundle cannot do.
    """
    return max(_form_flops(inputs, form) for form in kind.variants())


def _form_flops(inputs: ExecutorInputs, form: AnyStrategy) -> float:
    if form.member not in inputs.bundles:
        return 0.0
    manifest = inputs.of(form.member).manifest
    labels, samples = (
        len(manifest.labels),
        -(-len(inputs.clients.order) // max(1, inputs.clients.parts)),
    )
    counts = tuple(samples // labels + (label < samples % labels) for label in range(labels))
    try:
        return form.cost(workload(manifest, counts), _ANY_DEVICE).flops
    except MissingGraph:
        return 0.0


def _are_batched(inputs: ExecutorInputs, kinds: Sequence[AnyStrategy]) -> bool:
    """Whether the engine is torch, and networks of any of these kinds gain by batched training."""
    try:
        if engine_choice(inputs.bundle, inputs.engine).name != "torch":
            return False
    except EngineError:
        return False  # reported when the engine is opened
    forms = [form for kind in kinds if is_planned(kind) for form in kind.variants()]
    return any(
        is_faster_together(inputs, form.member, getattr(form, "trained", "all"))
        for form in forms
        if form.member in inputs.bundles
    )
