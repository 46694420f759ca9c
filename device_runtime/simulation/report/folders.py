"""Compares finished folders side by side, and joins those that are parts of one comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from device_runtime.simulation.compare.equal import EqualTerms, equal
from device_runtime.simulation.compare.figures import (
    ComparisonTerms,
    FinishedRun,
    Summary,
    read_run,
    shown_round,
    summarise,
    terms,
)
from device_runtime.simulation.compare.plan import ComparisonPlan, whole_plan_in
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.errors import ScenarioError

from .write import all_figures, as_json, short, tables


@dataclass(frozen=True)
class SideBySide:
    """Finished comparisons in one table.

    `summary` by policy, or by folder/policy for several folders of different comparisons. `unfinished`: the
    policies, of joined folders the runs, that are left out of it.
    """

    terms: ComparisonTerms
    summary: dict[str, Summary]
    equal: EqualTerms
    unfinished: tuple[str, ...]

    def text(self, wide: int | None = None, whole: bool = False) -> str:
        """The sentence and the short table, or all tables if `whole`, and what is not finished.

        Tables wider than `wide` characters come in parts.
        """
        text = (tables if whole else short)(self, wide)
        return "\n".join([text, *(f"not finished: {name}" for name in self.unfinished)])

    def json(self) -> str:
        """The figures in plain units; null where unknown."""
        return as_json({**all_figures(self), "unfinished": self.unfinished})


def side_by_side(folders: Sequence[Path], apart: bool = False) -> SideBySide:
    """Compares the finished runs of several folders on common terms: the earliest end of all runs, etc.

    Folders of one scenario and bundle are parts of one comparison, and joined by policy and seed; with
    `apart` each folder is shown by itself. Of a folder by itself, only policies whose runs are all finished
    are shown.

    Raises ScenarioError for a folder that is not of a simulation, where nothing is finished, and for a run
    that two parts have and that differs between them.
    """
    plans = {folder: whole_plan_in(folder) for folder in dict.fromkeys(folders)}
    parts: dict[object, list[Path]] = {}
    for folder, plan in plans.items():
        key = folder if apart else (plan.scenario.json(), plan.comparison.bundle)
        parts.setdefault(key, []).append(folder)
    unfinished: list[str] = []
    ran: list[tuple[ComparisonPlan, list[FinishedRun]]] = []
    for joined in parts.values():
        prefix = "" if len(parts) == 1 else "+".join(_named(folder, folders) for folder in joined) + "/"
        runs, lacking = _joined({folder: plans[folder] for folder in joined})
        unfinished += [f"{prefix}{name}" for name in lacking]
        named = [replace(run, name=RunName(f"{prefix}{run.name.policy}", run.name.seed)) for run in runs]
        if named:
            ran.append((plans[joined[0]], named))
    if not ran:
        raise ScenarioError(f"nothing is finished in {', '.join(map(str, folders))}")
    at = terms([run for _, runs in ran for run in runs], 0, None)
    summary: dict[str, Summary] = {}
    beside = EqualTerms()
    for plan, runs in ran:
        summary |= summarise(runs, replace(at, devices=plan.scenario.devices))
        beside += equal(runs, at, plan.scenario)
    return SideBySide(at, summary, beside, tuple(unfinished))


def _joined(plans: Mapping[Path, ComparisonPlan]) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs of the parts of one comparison, seed by seed, and the names of those that lack.

    Raises ScenarioError for a run that two parts have and that differs.
    """
    runs: dict[RunName, tuple[Path, FinishedRun]] = {}
    whole = next(iter(plans.values())).comparison
    for folder, plan in plans.items():
        whole = plan.comparison.joined(whole)
        finished = plan if len(plans) > 1 else plan.finished({})
        for name in set(finished.names) - set(finished.missing()):
            run = read_run(plan.of(name), name, shown_round(plan))
            if name in runs and (why := _difference(runs[name][1], run)):
                raise ScenarioError(
                    f"{name.policy} with seed {name.seed} is in {runs[name][0]} and in {folder}, and {why}: "
                    "remove one of the two, or show the folders apart (--apart)"
                )
            runs.setdefault(name, (folder, run))
    names = [RunName(policy, seed) for seed in whole.seed_numbers for policy in whole.policies]
    alone = len(plans) == 1
    lacking = [n.policy if alone else f"{n.policy} with seed {n.seed}" for n in names if n not in runs]
    return [runs[name][1] for name in names if name in runs], list(dict.fromkeys(lacking))


def _difference(run: FinishedRun, other: FinishedRun) -> str:
    """What differs between two runs of the same scenario, policy and seed; empty if they are equal."""
    if repr((run.rounds, run.tally)) == repr((other.rounds, other.tally)):  # nan is not equal to itself
        return ""
    pairs = zip(run.rounds, other.rounds, strict=False)
    first = next((own.round for own, others in pairs if repr(own) != repr(others)), None)
    since = "they differ" if first is None else f"they differ from round {first} on"
    versions = [", ".join(f"{k} {v}" for k, v in sorted(each.info.versions.items())) for each in (run, other)]
    return since if versions[0] == versions[1] else f"{since} ({'; '.join(versions)})"


def _named(folder: Path, among: Sequence[Path]) -> str:
    """The name of a folder: the last part of its path, if no other folder has the same."""
    alike = [other for other in among if other.resolve().name == folder.resolve().name]
    return folder.resolve().name if len(alike) == 1 else str(folder)
