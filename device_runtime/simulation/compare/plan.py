"""Plans a comparison: its runs and their folders, which are missing, and checks before any is started."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import msgspec
import numpy as np

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.tasks import feasible
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.device.engine.profiling import random_samples
from device_runtime.models.available_engines.available import engine_choice, open_model
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.errors import EngineError, ModelError
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.data.loading import prepared_targets
from device_runtime.simulation.data.spec import BY_CLASS
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.rounds.forecast import with_deadline
from device_runtime.simulation.rounds.run import Load, PreparedRun, check_task, prepare
from device_runtime.simulation.scenarios.scenario import (
    CHOOSE,
    Scenario,
    decode,
    of_policy,
    under,
    usual_name,
)

from .run_folder import RunName, fingerprint, finished

log = logging.getLogger(__name__)

SCENARIO, COMPARISON, RUNS = "scenario.json", "comparison.json", "runs"
SWEEP, POINTS = "sweep.json", "points"
"""What the folder of a sweep has: its plan, and a folder for each point, as of a simulation."""


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of comparison.json: the policies, and the seeds of each, a number of them or a list.

    `target` is the accuracy whose time is measured; None: the one of `figures.terms`. `command` is the
    command typed last. `bundle` is the sha256 of the bundle; empty where it was missing.
    """

    policies: tuple[str, ...]
    seeds: int | tuple[int, ...] = 1
    target: float | None = None
    command: str = ""
    bundle: str = ""

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds, in ascending order."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    def joined(self, other: Comparison) -> Comparison:
        """This comparison with the policies and seeds of another one too."""
        policies = tuple(dict.fromkeys((*other.policies, *self.policies)))
        seeds = counted_seeds((*other.seed_numbers, *self.seed_numbers))
        return msgspec.structs.replace(self, policies=policies, seeds=seeds)


def counted_seeds(numbers: Iterable[int]) -> int | tuple[int, ...]:
    """These seeds, as their number where they are 0, 1, .."""
    seeds = tuple(sorted(set(numbers)))
    return len(seeds) if seeds == tuple(range(len(seeds))) else seeds


@dataclass(frozen=True)
class WantedRuns:
    """The wanted runs of a comparison; None: as its folder says, or else one seed of the policies `usual`.

    `seeds`, `target` and `command` are those of `Comparison`. part: other commands, on other machines too, do
    further policies and seeds of the same comparison, in folders of their own or in this one.
    """

    policies: tuple[str, ...] | None = None
    seeds: int | tuple[int, ...] | None = None
    target: float | None = None
    command: str = ""
    usual: tuple[str, ...] = (CHOOSE,)
    part: bool = False


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison and its folder. `without`: policies that are not in its report, and why.

    part: as in `WantedRuns`; the folder's comparison.json then has the runs of all parts.
    """

    scenario: Scenario
    comparison: Comparison
    folder: Path
    without: Mapping[str, str] = field(default_factory=dict)
    part: bool = False

    @property
    def names(self) -> tuple[RunName, ...]:
        """All runs, seed by seed, so that a comparison that is stopped early has runs of every policy."""
        policies = self.comparison.policies
        return tuple(RunName(policy, seed) for seed in self.comparison.seed_numbers for policy in policies)

    def of(self, name: RunName) -> Path:
        """The folder of one run."""
        return self.folder / RUNS / str(name)

    def missing(self) -> tuple[RunName, ...]:
        """The runs that are not finished."""
        prints = {policy: of_policy(self.scenario, policy) for policy in self.comparison.policies}
        return tuple(
            name
            for name in self.names
            if not finished(self.of(name), fingerprint(prints[name.policy], name.seed))
        )

    def finished(self, whys: Mapping[str, str]) -> ComparisonPlan:
        """The plan without the policies of which a run is missing; `whys`: the reasons, by policy."""
        lacking = {name.policy: whys.get(name.policy, "it is not finished") for name in self.missing()}
        policies = tuple(policy for policy in self.comparison.policies if policy not in lacking)
        comparison = msgspec.structs.replace(self.comparison, policies=policies)
        return replace(self, comparison=comparison, without=lacking)

    def check_folder(self) -> None:
        """Raises ScenarioError if the folder holds another scenario, another bundle, or something else."""
        old = scenario_in(self.folder)
        rounds = self.scenario.task.rounds
        if old is not None and _with_rounds(old, rounds) != self.scenario.json():
            tables = msgspec.to_builtins(old), msgspec.to_builtins(self.scenario)
            raise ScenarioError(
                f"{self.folder} holds another scenario ({_difference(*tables, '') or 'the same settings'}): "
                "give another --run-dir, or remove it"
            )
        if old is not None and old.task.rounds > rounds:
            raise ScenarioError(
                f"{self.folder} holds runs of {old.task.rounds} rounds, which cannot become {rounds}: give "
                f"--rounds {old.task.rounds} or more, or another --run-dir"
            )
        if old is None and self.folder.is_dir() and any(each.name != RUNS for each in self.folder.iterdir()):
            raise ScenarioError(f"{self.folder} is not the folder of a simulation: give another --run-dir")
        if self.folder.exists() and not self.folder.is_dir():
            raise ScenarioError(f"{self.folder} is not a folder: give another --run-dir")
        before = comparison_in(self.folder)
        if before and before.bundle and self.comparison.bundle not in ("", before.bundle):
            were, are = before.bundle[:8], self.comparison.bundle[:8]
            raise ScenarioError(
                f"{self.folder} was made with another {self.scenario.task.bundle} (sha256 {were}.., now "
                f"{are}..): give another --run-dir, or remove it"
            )

    def save(self) -> None:
        """Makes the folder and writes scenario and comparison. Raises as `check_folder` does, and OSError."""
        self.check_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        before = comparison_in(self.folder) if self.part else None
        comparison = self.comparison if before is None else self.comparison.joined(before)
        contents = {SCENARIO: self.scenario.json(), COMPARISON: msgspec.json.encode(comparison)}
        for name, text in contents.items():
            replace_file(self.folder / name, msgspec.json.format(text) + b"\n", mode=0o666)


def planned(scenario: Scenario, options: WantedRuns, folder: Path | None = None) -> ComparisonPlan:
    """The plan of a comparison in `folder`, by default one below runs/ that no other scenario has.

    Raises ScenarioError for a policy that the scenario's task cannot be run under, and as `with_deadline`.
    """
    scenario = with_deadline(scenario)
    bundle = bundle_sha256(scenario.task.bundle)
    mark = hashlib.sha256(f"{fingerprint(scenario, 0)} {bundle}".encode()).hexdigest()[:6]
    folder = folder or Path("runs") / f"{scenario.name}-{mark}"
    earlier = comparison_in(folder) or Comparison(policies=options.usual)
    policies = options.policies or earlier.policies
    named: dict[str, str] = {}
    for policy in policies:
        if (other := named.setdefault(usual_name(policy), policy)) != policy:
            raise ScenarioError(f"{other} and {policy} are the same policy: name one of them")
    tasks = [under(policy, scenario.task, scenario.devices, scenario.all_kinds) for policy in policies]
    for name in scenario.all_kinds.given:
        if not any(name in scenario.all_kinds.in_task(task).given for task in tasks):
            raise ScenarioError(
                f"--{name} (all_kinds.{name}): no kind of {', '.join(policies)} has this setting"
            )
    comparison = Comparison(
        policies=policies,
        seeds=options.seeds or earlier.seeds,
        target=earlier.target if options.target is None else options.target,
        command=options.command,
        bundle=bundle or earlier.bundle,
    )
    return ComparisonPlan(scenario, comparison, folder, part=options.part)


def scenario_in(folder: Path) -> Scenario | None:
    """The scenario of this folder, or None. Raises ScenarioError for a damaged one."""
    try:
        return decode((folder / SCENARIO).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ScenarioError(f"cannot read {folder / SCENARIO}: {(error.strerror or '').lower()}") from None


def comparison_in(folder: Path) -> Comparison | None:
    """The comparison of this folder as it was last run, or None. Raises ScenarioError."""
    path = folder / COMPARISON
    try:
        return msgspec.json.decode(path.read_bytes(), type=Comparison)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is damaged: {error}") from None


def plan_in(folder: Path) -> ComparisonPlan:
    """The plan of the finished policies in this folder; the others are in its `without`.

    Raises ScenarioError for a folder that is not of a simulation.
    """
    return whole_plan_in(folder).finished({})


def whole_plan_in(folder: Path) -> ComparisonPlan:
    """The plan of this folder, also of runs that are not finished. Raises as `plan_in` does."""
    scenario, comparison = scenario_in(folder), comparison_in(folder)
    if scenario is None or comparison is None:
        points = f": it is of a sweep, name folders in {folder / POINTS}" if (folder / SWEEP).exists() else ""
        raise ScenarioError(f"{folder} is not the folder of a simulation{points}")
    return ComparisonPlan(scenario, comparison, folder)


def _with_rounds(scenario: Scenario, rounds: int) -> bytes:
    """The JSON of the scenario with so many rounds: finished runs of fewer rounds may get more."""
    return msgspec.structs.replace(
        scenario, task=msgspec.structs.replace(scenario.task, rounds=rounds)
    ).json()


def _difference(old: object, new: object, where: str) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            inside = f"{where}.{name}" if where else str(name)
            if change := _difference(old.get(name), new.get(name), inside):
                return change
        return ""
    return "" if old == new else f"{where} is {_short(old)}, not {_short(new)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


LOOKED_AT = 256
"""Samples, evenly spaced, that are checked against the bundle's input."""
COMPARED, OFF_BUNDLE = 4, 1e-3
"""How many random samples a module is compared with its bundle on, and by how much the logits may differ.

The difference is a share of the largest logit, ten times as much as an export allows.
"""


def check(
    scenario: Scenario,
    missing: Sequence[RunName],
    request: ExecutorRequest,
    load: Load = data_sets.load,
    warn: Callable[[str], None] = log.warning,
) -> None:
    """Checks for errors that every run would have: opens the bundle, loads the data and divides it.

    The data is divided as in the first missing run. A module and a loss of the user's own are compared with
    its bundles. This also fills the data cache once, rather than in each of several processes. `warn` gets a
    sentence for each setting that has no effect.

    Raises the errors of `rounds.run.prepare`, EngineError, ScenarioError for data that does not fit the
    bundle and for a policy whose kinds the bundle cannot do, and ExecutorError.
    """
    prepared = prepare(scenario, missing[0].seed, load)
    manifest = prepared.inputs.bundle.manifest
    for note in prepared.data.notes:
        log.info("%s: %s", scenario.data.path or scenario.data.source, note)
    fit(prepared.data, manifest, scenario.data.source)
    for bundle in prepared.inputs.bundles.values():
        if prepared.inputs.engine.for_torch:
            engine_choice(bundle, prepared.inputs.engine)
        if prepared.inputs.engine.own_code:
            compare_module(bundle, prepared.inputs.engine)
    for sentence in without_effect(scenario, prepared, {name.policy for name in missing}):
        warn(sentence)
    for policy in dict.fromkeys(name.policy for name in missing):
        task = of_policy(scenario, policy).task
        try:
            check_task(task, prepared)
        except (ScenarioError, AggregatorError) as error:
            raise ScenarioError(f"{policy}: {error}") from None
        choice.choose(prepared.inputs, request, [kind.strategy for kind in task.kinds])


def compare_module(bundle: Bundle, engine: EngineSettings) -> None:
    """Compares the logits of a user's module, and the values of a user's loss, with those of the bundle.

    On random samples, on the CPU. Equal tensors do not say that it is the same network. Raises EngineError
    where they differ, or the code cannot be run.
    """
    theirs, right = open_model(bundle, replace(engine, device="cpu")), open_model(bundle)
    x, y = random_samples(bundle.manifest, COMPARED)
    logits, expected = theirs.logits(x), right.logits(x)
    off = float(np.abs(logits - expected).max()) if np.isfinite(logits).all() else inf
    if not off <= OFF_BUNDLE * max(1e-3, float(np.abs(expected).max())):
        raise EngineError(
            f"module {engine.module} computes other logits than bundle {bundle.manifest.name}, off by up to "
            f"{off:.2g} on random samples: was it changed after the export?"
        )
    graphs = (name.partition(".") for name in bundle.manifest.graphs)
    tunable = next((tunable for kind, _, tunable in graphs if kind == "loss"), "")
    if engine.loss and tunable:
        loss, of_graph = (model.probe(tunable).loss(x, y) for model in (theirs, right))
        if not abs(loss - of_graph) <= OFF_BUNDLE * max(1e-3, abs(of_graph)):
            raise EngineError(
                f"loss {engine.loss} is {loss:.4g} on random samples, and {of_graph:.4g} by bundle "
                f"{bundle.manifest.name}: was it changed after the export?"
            )


def without_effect(scenario: Scenario, prepared: PreparedRun, policies: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each setting that changes nothing under any of these policies, or not what it says."""
    spec, manifest, data = scenario.data, prepared.inputs.bundle.manifest, prepared.data
    tasks = [of_policy(scenario, policy).task for policy in policies]
    of_tasks = [feasible.without_effect(task, manifest) for task in tasks]
    sentences = [sentence for sentence in of_tasks[0] if all(sentence in others for others in of_tasks)]
    strategies = [kind.strategy for task in tasks for kind in task.kinds]
    if spec.generic_samples and not feasible.uses_generic(strategies):
        sentences.append(f"data.generic_samples are held out and not used: {feasible.NO_GENERIC}")
    if spec.partition in BY_CLASS and data.in_tenths:
        sentences.append(f"partition {spec.partition}: samples are divided by tenths of {data.labels[0]}")
    return (*sentences, *(f"data.{sentence}" for sentence in spec.without_effect))


def fit(data: DataSet, manifest: Manifest, source: str) -> None:
    """Raises ScenarioError, which describes both, unless the bundle takes such samples and labels."""
    few = np.linspace(0, len(data.train_x) - 1, min(LOOKED_AT, len(data.train_x))).astype(np.int64)
    try:
        manifest.input.prepare(data.train_x[few])
    except ModelError as error:
        takes = f"{manifest.input.dtype} {_by(manifest.input.shape)}"
        has = f"{data.train_x.dtype} {_by(data.train_x.shape[1:])}"
        raise ScenarioError(
            f"samples of {source} are {has}, bundle {manifest.name} takes {takes} ({error})"
        ) from None
    try:
        prepared_targets(data, manifest, data.train_y)
    except ScenarioError as error:
        raise ScenarioError(f"{source}: {error}") from None
    if manifest.target.compared == "classes" and len(data.labels) > len(manifest.labels):
        raise ScenarioError(
            f"{source} has {len(data.labels)} classes, bundle {manifest.name} has {len(manifest.labels)}"
        )


def _by(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape)


def bundle_sha256(name_or_path: str) -> str:
    """The sha256 of the bundle's content; empty if it is missing: reports can be written without it."""
    try:
        return Bundle.open(bundles.find_bundle(name_or_path)).sha256
    except (ModelError, OSError):
        return ""
