"""Which runs a comparison has, where each is kept, and which of them are still to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenario import Scenario, decode

from .performing import of_policy
from .run_folder import Name, fingerprint, finished

SCENARIO, COMPARISON, RUNS = "scenario.json", "comparison.json", "runs"


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """comparison.json: every policy is run with seeds 0 to `seeds` - 1; `command` is what was typed last.

    `target` is the accuracy whose time is measured; None: the one of `figures.terms`. `bundle` is
    the sha256 of what is learnt; empty where it was not there.
    """

    policies: tuple[str, ...]
    seeds: int = 1
    target: float | None = None
    command: str = ""
    bundle: str = ""


@dataclass(frozen=True)
class Plan:
    """A comparison in its folder. `without`: policies that are left out of its report, and why."""

    scenario: Scenario
    comparison: Comparison
    folder: Path
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[Name, ...]:
        """Seed by seed, so that what is stopped early has something of every policy."""
        seeds = range(self.comparison.seeds)
        return tuple(Name(policy, seed) for seed in seeds for policy in self.comparison.policies)

    def of(self, name: Name) -> Path:
        """The folder of one run."""
        return self.folder / RUNS / str(name)

    def missing(self) -> tuple[Name, ...]:
        """Runs that are not there and whole."""
        prints = {policy: of_policy(self.scenario, policy) for policy in self.comparison.policies}
        return tuple(
            name
            for name in self.names
            if not finished(self.of(name), fingerprint(prints[name.policy], name.seed))
        )

    def finished(self, why: str) -> Plan:
        """The same without the policies of which a run is missing, because of `why`."""
        lacking = {name.policy: why for name in self.missing()}
        kept = tuple(policy for policy in self.comparison.policies if policy not in lacking)
        comparison = msgspec.structs.replace(self.comparison, policies=kept)
        return replace(self, comparison=comparison, without=lacking)

    def check_folder(self) -> None:
        """Raises ScenarioError when it is of something else: another scenario, or another bundle there."""
        there = scenario_in(self.folder)
        if there is not None and there.json() != self.scenario.json():
            raise ScenarioError(
                f"{self.folder} holds another scenario ({_differs(there, self.scenario)}): "
                "give another --run-dir, or remove it"
            )
        if there is None and self.folder.is_dir() and any(self.folder.iterdir()):
            raise ScenarioError(f"{self.folder} is no folder of a simulation: give another --run-dir")
        if self.folder.exists() and not self.folder.is_dir():
            raise ScenarioError(f"{self.folder} is no folder: give another --run-dir")
        before = comparison_in(self.folder)
        if before and before.bundle and self.comparison.bundle not in ("", before.bundle):
            were, are = before.bundle[:8], self.comparison.bundle[:8]
            raise ScenarioError(
                f"{self.folder} was made with another {self.scenario.task.bundle} (sha256 {were}.., now "
                f"{are}..): give another --run-dir, or remove it"
            )

    def save(self) -> None:
        """Make the folder and say in it what it is. Raises ScenarioError as `check_folder`, OSError."""
        self.check_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / SCENARIO).write_bytes(msgspec.json.format(self.scenario.json()) + b"\n")
        (self.folder / COMPARISON).write_bytes(
            msgspec.json.format(msgspec.json.encode(self.comparison)) + b"\n"
        )


def scenario_in(folder: Path) -> Scenario | None:
    """What is simulated in this folder, if anything. Raises ScenarioError for one that is damaged."""
    try:
        return decode((folder / SCENARIO).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ScenarioError(f"cannot read {folder / SCENARIO}: {(error.strerror or '').lower()}") from None


def comparison_in(folder: Path) -> Comparison | None:
    """How it was compared when it was last run, if it was. Raises ScenarioError."""
    path = folder / COMPARISON
    try:
        return msgspec.json.decode(path.read_bytes(), type=Comparison)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ScenarioError(f"{path} is damaged: {error}") from None


def _differs(old: Scenario, new: Scenario) -> str:
    """The first setting in which they differ, with both values."""
    return _difference(msgspec.to_builtins(old), msgspec.to_builtins(new), "") or "the same settings"


def _difference(old: object, new: object, where: str) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            inside = f"{where}.{name}" if where else str(name)
            if found := _difference(old.get(name), new.get(name), inside):
                return found
        return ""
    return "" if old == new else f"{where} is {_short(old)}, not {_short(new)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
