"""A scenario to simulate (fleet, data, task), read from TOML, and the policies that runs compare.

A policy is a way to run the task: a name in POLICIES, or a system of `aggregator.tasks.systems`. A
comparison runs the same fleet, data and task under several policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.closing import straggler_share
from device_runtime.aggregator.tasks.drawing import UNIFORM
from device_runtime.aggregator.tasks.kind_settings import with_usual
from device_runtime.aggregator.tasks.mask_settings import MaskSettings
from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task, check_effect, with_one_deadline
from device_runtime.content import content, explained, near, read_toml, source_near
from device_runtime.device.selection.choose import RICHEST, ChoicePolicy
from device_runtime.models.available_engines.available import AUTO, ENGINES
from device_runtime.models.bundles.names import TRAINING_PRECISIONS
from device_runtime.models.errors import ModelError
from device_runtime.profiles import ProfileError
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.data import DataSpec, GroupData
from device_runtime.simulation.errors import ScenarioError
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.plugins import is_shipped

DIGITS = "digits-wrn-10-1"
ROUNDS = 20
"""Rounds of a scenario that does not say how many."""
_PATHS = ("path", "test_path", "vectors")
"""Fields of [data] with paths relative to the scenario's file."""

_ANY_TASK = Task(bundle=DIGITS)
NONE_SHARED = SharedSettings()
NOT_OURS = {
    "seed": "a simulation is given its seed when it is run",
    "eval_data": "a simulation evaluates on the test samples of [data]",
    "min_devices": "the whole fleet is known when a simulation begins",
}
"""Settings of a task that a scenario does not have, and why."""
TASK_DEFAULTS = {"bundle": DIGITS, "rounds": ROUNDS}
"""Settings of the task of a scenario that does not give them."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fleet, the data divided among its devices, and the task that they are given.

    slow: the factor by which every device is slower, so that a small task costs as much as a large one.
    eval_every: rounds between evaluations on the test samples; the last is evaluated too; 0: never.
    engine: the engine that trains (see `models.available_engines.available`).
    place: with engine torch, it may be cuda.
    precision: of training; with engine torch, it may be bf16, and on a GPU tf32.
    module: the network of a bundle of own code, as FILE.py:NAME or PACKAGE.MODULE:NAME, by which engine torch
    trains it; empty: none. own_loss: the function of a bundle with a loss of one's own, in the same way.
    choose: the policy by which devices choose among updates; empty: the first that fits.
    all_kinds: settings for all kinds of every policy that have them, in place of the kinds' own.
    stragglers: the share of the devices, 0 to less than 1, that the deadline is to make stragglers: a plan
    finds the seconds (`rounds.forecast.with_deadline`); None: they are the task's.
    Raises ScenarioError for settings that are out of range or contradict each other.
    """

    fleet: FleetSpec
    task: Task
    name: str = "scenario"
    devices: int = 100
    slow: float = 1.0
    eval_every: int = 1
    engine: str = AUTO
    place: str = "cpu"
    module: str = ""
    own_loss: str = ""
    precision: str = "float32"
    choose: str = ""
    all_kinds: SharedSettings = NONE_SHARED
    stragglers: float | None = None
    data: DataSpec = msgspec.field(default_factory=DataSpec)

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ScenarioError(f"devices is {self.devices}, expected 1 or more")
        if not 0 < self.slow < 1e6:
            raise ScenarioError(f"slow is {self.slow}, expected more than 0 and less than a million")
        if self.stragglers is not None and not 0 <= self.stragglers < 1:
            share = f"{100 * self.stragglers:.15g}% stragglers"
            raise ScenarioError(f"deadline is {share!r}, expected 0 to less than 100% of the devices")
        if self.eval_every < 0:
            raise ScenarioError(f"eval_every is {self.eval_every}, expected 0 or more")
        if self.engine not in (AUTO, *ENGINES):
            raise ScenarioError(f"engine is {self.engine!r}, expected one of {AUTO}, {', '.join(ENGINES)}")
        if self.precision not in TRAINING_PRECISIONS:
            expected = f"expected one of {', '.join(TRAINING_PRECISIONS)}"
            raise ScenarioError(f"precision is {self.precision!r}, {expected}")
        if self.precision == "tf32" and self.place == "cpu":
            raise ScenarioError("precision is tf32, which only GPUs have, and place is cpu")
        for name, instead in NOT_OURS.items():
            if getattr(self.task, name) != getattr(_ANY_TASK, name):
                raise ScenarioError(f"task has {name}: {instead}")
        if self.task.generic is not None and self.data.generic_samples:
            raise ScenarioError("task has generic and data generic_samples: give one of them")
        for name in self.data.groups.keys() - self.fleet.groups.keys():
            groups = ", ".join(self.fleet.groups)
            raise ScenarioError(f"data.groups.{name}: the fleet has no such group; there are {groups}")
        if self.fleet.redrawn and self.data.groups:
            raise ScenarioError(f"data.groups: the groups of fleet {self.fleet.name} are redrawn every round")
        if self.task.min_contributions > self.devices:
            most = f"expected at most {self.devices}, one of each device"
            raise ScenarioError(f"min_contributions is {self.task.min_contributions}, {most}")

    @property
    def trained_in(self) -> str:
        """A phrase for a precision that changes results; empty for float32."""
        return "" if self.precision == "float32" else f"; trained in {self.precision}"

    @property
    def own_code(self) -> tuple[str, ...]:
        """The sources of the user's code: what engine torch runs, and metrics."""
        metrics = (source for source in self.task.metrics if ":" in source)
        return (*(source for source in (self.module, self.own_loss) if source), *metrics)

    def json(self) -> bytes:
        """Canonical JSON: equal scenarios give equal bytes, also after tasks and data gain new settings."""
        whole = msgspec.to_builtins(self)
        whole["task"] = {
            name: value
            for name, value in whole["task"].items()
            if name in _ALWAYS or getattr(self.task, name) != getattr(_ANY_TASK, name)
        }
        if self.task.order == "listed" and not _has_default_names(self.task):
            del whole["task"]["order"]
        for kind in (kind for kind in whole["task"]["kinds"] if not kind["first_epochs"]):
            del kind["first_epochs"]
        for settings in (whole["task"], *(kind["settings"] for kind in whole["task"]["kinds"])):
            statistics = settings.get("statistics") or {}
            if statistics and statistics["hold_out"] is None:  # 0 was its default
                statistics["hold_out"] = 0.0
        for group in whole["fleet"]["groups"].values():
            for newer in ("members", "tags"):
                if not group[newer]:
                    del group[newer]
        if not self.fleet.redrawn:
            del whole["fleet"]["redrawn"]
        for newer in _NEWER_OF_DATA:
            if not whole["data"][newer]:
                del whole["data"][newer]
        for newer in ("choose", "module", "own_loss"):
            if not whole[newer]:
                del whole[newer]
        if self.stragglers is None:
            del whole["stragglers"]
        if self.precision == "float32":
            del whole["precision"]
        if not self.all_kinds.given:
            del whole["all_kinds"]
        return _encoder.encode(whole)


_ALWAYS = frozenset({
    "buffer_size", "bundle", "devices_per_round", "eval_data", "family", "generic", "kinds", "late",
    "max_num_examples", "max_staleness", "min_contributions", "min_devices", "name", "round_deadline_s",
    "rounds", "seed", "server", "staleness_weight", "start", "untimed_rounds",
})  # fmt: skip
"""Settings of a task that are written even at their defaults. Newer settings are written only where they
differ, so that runs finished before these existed still count as finished."""
_NEWER_OF_DATA = (
    "client_column",
    "client_level",
    "device_test_share",
    "feature_columns",
    "groups",
    "validation_share",
)
"""Settings of the data that are written only where they are given, for the same reason."""
_encoder = msgspec.json.Encoder(order="sorted")


def decode(data: bytes) -> Scenario:
    """A scenario from its JSON, in which a task that names no kinds has no order. Raises ScenarioError."""
    registry.load_plugins()

    def read() -> Scenario:
        scenario = msgspec.json.decode(data, type=Scenario)
        if not _has_default_names(scenario.task) or "order" in msgspec.json.decode(data)["task"]:
            return scenario
        return msgspec.structs.replace(scenario, task=msgspec.structs.replace(scenario.task, order="default"))

    return _decoded(read, "scenario")


def _has_default_names(task: Task) -> bool:
    """Whether a task has the kinds, in their order, of tasks that name none."""
    return tuple(kind.name for kind in task.kinds) == registry.OFFERED_KINDS


def preset_names() -> tuple[str, ...]:
    """The names of the shipped scenarios."""
    return tuple(sorted(file.stem for file in _presets().glob("*.toml")))


def load(source: str | Path, over: Mapping[str, Any] | None = None) -> Scenario:
    """Loads a scenario: a TOML file, a scenario preset, or a fleet (preset or file) with the digits task.

    `over` replaces tables and values of the file, in the same form: {"task": {"rounds": 5}}. In the file,
    `fleet` is a fleet preset, a file in the same folder, or a table. Raises ScenarioError with a message of
    one line.
    """
    path = Path(source)
    if str(source) in preset_names():
        path = _presets() / f"{source}.toml"
        table = read_toml(path, ScenarioError)
    elif str(source) in fleets.preset_names():
        table = {"fleet": str(source)}
    elif path.suffix == ".toml":
        table = read_toml(path, ScenarioError)
        table = {"fleet": {"name": path.stem, **table}} if "groups" in table else table
    else:
        presets = ", ".join((*preset_names(), *fleets.preset_names()))
        raise ScenarioError(f"no scenario named {str(source)!r}: give a file *.toml or one of {presets}")

    def read() -> Scenario:
        own, other = (
            {**each, "task": with_one_deadline(_table({"task": each.get("task", {})}, "task"))}
            for each in (table, over or {})
        )
        return _scenario_of(_over({"name": path.stem, **own}, other), path.parent)

    return _decoded(read, str(source))


def _scenario_of(table: Mapping[str, Any], beside: Path) -> Scenario:
    parts = dict(table)
    fleet = parts.pop("fleet", None)
    if isinstance(fleet, str):
        file = near(beside, fleet)
        spec = fleets.load(file if file.endswith(".toml") else fleet)
    elif isinstance(fleet, dict):
        spec = fleets.read({"name": parts.get("name"), **fleet})
    else:
        raise ScenarioError('which fleet? expected fleet = "a preset or file.toml", or a [fleet] table')
    data, task = _table(parts, "data"), {**TASK_DEFAULTS, **_table(parts, "task")}
    data |= {name: near(beside, data[name]) for name in _PATHS if name in data}
    for name, group in _table({"data.groups": data.get("groups", {})}, "data.groups").items():
        try:
            msgspec.convert(group, GroupData)
        except msgspec.ValidationError as error:
            raise ScenarioError(explained(error, GroupData, f"data.groups.{name}")) from None
    task |= {name: near(beside, task[name]) for name in ("bundle", "generic") if name in task}
    check_effect(task)
    if (share := straggler_share(task.get("round_deadline_s"))) is not None:
        parts["stragglers"] = share
        del task["round_deadline_s"]
    for key in ("module", "own_loss"):
        if isinstance(source := parts.get(key), str):
            parts[key] = source_near(beside, source)
    if "masks" in task:
        task["masks"] = stand_in_helpers(task["masks"])
    if "kinds" in task:
        task["kinds"] = with_usual(task["kinds"])
    if isinstance(task.get("family"), list):
        task["family"] = [near(beside, path) for path in task["family"]]
    if isinstance(task.get("metrics"), list):
        task["metrics"] = [source_near(beside, source) for source in task["metrics"]]
    return msgspec.convert({**parts, "fleet": spec, "data": data, "task": task}, Scenario)


def stand_in_helpers(masks: Any) -> Any:
    """The table `masks` of a task, with so many helpers that nobody runs in place of a number (default 1).

    A simulation has no masks, and needs no helper.
    """
    if not isinstance(masks, dict) or not isinstance(count := masks.get("helpers", 1), int):
        return masks
    helpers = [f"helper-{number}={number:064x}" for number in range(1, count + 1)]
    return {**masks, "helpers": helpers}


def _table(parts: dict[str, Any], name: str) -> dict[str, Any]:
    """Removes the table `name` from `parts` and returns it. Raises ScenarioError."""
    table = parts.pop(name, {})
    if not isinstance(table, dict):
        raise ScenarioError(f"{name} is {table!r}, expected a table [{name}]")
    return dict(table)


def _decoded(make: Any, where: str) -> Scenario:
    try:
        scenario: Scenario = make()
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{where}: {explained(error, Scenario)}") from None
    except (ProfileError, TaskError, ScenarioError, ValueError) as error:
        raise ScenarioError(f"{where}: {error}") from None
    return scenario


def _over(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for name, value in over.items():
        old = merged.get(name)
        merged[name] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _presets() -> Path:
    return content("profiles") / "scenarios"


CHOOSE = "choose"
CENTRALISED = "centralised"
POLICIES = {
    CHOOSE: "every device sends the richest kind of update that it can afford, as the task offers them",
    "drop": "full updates only: stragglers are dropped (the system fedavg)",
    "reduced": "full updates, of one local epoch where all do not fit (the system fedavg+)",
    CENTRALISED: "one model on the pooled data, on one computer without a deadline: an oracle",
}
"""The policies in words; the systems of `aggregator.tasks.systems` are policies too."""
COMPUTER = "uniform-server"
"""The fleet preset whose one device trains the policy `centralised`."""


def names() -> tuple[str, ...]:
    """All policies; modifiers, as in +dp, may follow the names of systems."""
    own = (name for name in _own_policies() if name != RICHEST.name)
    return (*POLICIES, "mixed", *own, *systems.names())


def _own_policies() -> Mapping[str, Any]:
    """Choice policies by name, those of plugins included.

    Raises ScenarioError for one of a user's own that has the name of another policy and would not run.
    """
    registry.load_plugins()
    for name in (*POLICIES, "mixed", *systems.names()):
        if (own := ChoicePolicy.registry.get(name)) is not None and not is_shipped(own):
            raise ScenarioError(
                f"policy {own.__qualname__} is called {name!r}, as another policy is: give it another name"
            )
    return ChoicePolicy.registry


def describe(policy: str) -> str:
    """The policy in one line. Raises ScenarioError."""
    try:
        if policy in _own_policies():
            return str(_own_policies()[policy].about)
        name, plus, rest = _canonical(policy).partition("+")
        if name == CHOOSE:
            modifiers = systems.modifiers_of(policy, plus + rest)
            return "; ".join((POLICIES[CHOOSE], *(systems.MODIFIERS[modifier] for modifier in modifiers)))
        return POLICIES.get(policy) or systems.describe(policy)
    except TaskError as error:
        raise ScenarioError(str(error)) from None


def under(
    policy: str, task: Task, devices: int | None = None, all_kinds: SharedSettings = NONE_SHARED
) -> Task:
    """The task as this policy runs it, with so many devices if that is known. Raises ScenarioError.

    all_kinds: those that no kind of the policy has are ignored.
    """
    try:
        task = _under(policy, task, devices)
        return all_kinds.in_task(task).applied(task)
    except (TaskError, ModelError) as error:
        raise ScenarioError(f"{policy}: {error}") from None


def _under(policy: str, task: Task, devices: int | None) -> Task:
    name, plus, rest = _canonical(policy).partition("+")
    if task.masks is None and "central-dp" in rest.split("+"):
        task = msgspec.structs.replace(task, masks=MaskSettings(**stand_in_helpers({})))
    if name == CHOOSE:
        return systems.with_modifiers(task, systems.modifiers_of(policy, plus + rest), task, devices)
    if policy == CENTRALISED:
        full = systems.task_as_system("no-stragglers", task)
        return msgspec.structs.replace(
            full,
            masks=None,
            robust="none",
            devices_per_round=None,
            draw=UNIFORM,
            devices_with=(),
            hold_out_devices=(),
            buffer_size=0,
            min_contributions=1,
        )
    return systems.task_as_system(policy, task, devices)


def of_policy(scenario: Scenario, policy: str) -> Scenario:
    """The scenario as this policy runs it. Raises ScenarioError."""
    own = msgspec.structs.replace(
        scenario, task=under(policy, scenario.task, scenario.devices, scenario.all_kinds)
    )
    if (name := policy.partition("+")[0]) in _own_policies():
        own = msgspec.structs.replace(own, choose=name)
    if policy != CENTRALISED:
        return own
    data = msgspec.structs.replace(
        scenario.data, partition="iid", samples_per_client=None, reuse=False, groups={}
    )
    fleet = fleets.load(COMPUTER)
    return msgspec.structs.replace(own, devices=1, data=data, fleet=fleet)


def usual_name(policy: str) -> str:
    """The one name of a policy that has several, as `mixed` is `choose` and `drop` is `fedavg`."""
    name, plus, rest = policy.partition("+")
    return f"{CHOOSE}{plus}{rest}" if name == "mixed" else systems.ALIASES.get(policy, policy)


def _canonical(policy: str) -> str:
    """The policy with `mixed`, and the name of a choice policy, replaced by `choose`."""
    name, plus, rest = policy.partition("+")
    return f"{CHOOSE}{plus}{rest}" if name == "mixed" or name in _own_policies() else policy
