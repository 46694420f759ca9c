"""What is an update of each form worth to a round? The table by which default kinds are ordered.

    .venv/bin/python benchmarks/gain_of_forms.py --out gains.json             # digits, 2 seeds: 15 minutes
    .venv/bin/python benchmarks/gain_of_forms.py --out gains.json --seeds 1   # a look

Two fifths of the devices send full updates; the others are stragglers that send nothing, or all of them one
form. Samples are divided by Dirichlet(0.3), and so that three classes are with stragglers alone. No device
is late. Printed are the points of accuracy that a form adds to dropping the stragglers, as the mean of the
last four rounds, and the modelled joules of one such update. What is in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

from tabulate import tabulate

from device_runtime.device.selection.choose import Candidate, ChoicePolicy
from device_runtime.profiles import DeviceProfile
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.kinds import registry

EPOCHS, DEVICES, STRAGGLERS = 4, 16, 10
FORMS = (
    *("full", "full epochs=2", "full epochs=1"),
    *("width-slice width-0.5", "width-slice width-0.5 epochs=2", "width-slice width-0.5 epochs=1"),
    *("entropy-subset 50%", "entropy-subset 50% epochs=2", "entropy-subset 50% epochs=1"),
    *("entropy-subset 25%", "entropy-subset 10%", "few-shot", "class-means", "zeroth-order"),
)
DIVISIONS: dict[str, dict[str, Any]] = {
    "Dirichlet(0.3)": {},
    "own classes": {"groups": {"slow": {"classes": [7, 8, 9]}}},
}
GROUPS = {
    "fast": {"profile": "pi-5", "share": 0.4},
    "slow": {"profile": "pi-zero-2w", "share": 0.6},
}


@dataclass(frozen=True)
class OneForm(ChoicePolicy):
    """Stragglers send updates of one form, or nothing if it is empty."""

    name: ClassVar[str] = "one-form"
    form: ClassVar[str] = ""

    def pick(self, fitting: Sequence[Candidate], profile: DeviceProfile) -> Candidate | None:
        if profile.name.startswith("pi-5"):
            return fitting[0]
        return next((candidate for candidate in fitting if candidate.label == self.form), None)


class Notes(NullObserver):
    """Notes the accuracy and the joules of each round."""

    def __init__(self) -> None:
        self.accuracies: list[float] = []
        self.joules: list[float] = []

    def closed(self, line: SimulatedRound) -> None:
        if line.eval_acc is not None:
            self.accuracies.append(line.eval_acc)
        self.joules.append(line.energy_j)


def run(form: str, division: str, seed: int, rounds: int) -> tuple[float, float]:
    """Accuracy, in percent, and joules of a round."""
    OneForm.form = form
    training = {"epochs": EPOCHS, "batch": 32}
    names = ("full", "width-slice", *registry.DEFAULT_KINDS[1:])  # not the order of default kinds
    kinds = [{"name": name, "settings": training if name in names[:3] else {}} for name in names]
    tables = {
        "devices": DEVICES,
        "fleet": {"name": "two-speeds", "groups": GROUPS},
        "data": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, **DIVISIONS[division]},
        "choose": OneForm.name,
        "task": {
            "bundle": "digits-wrn-10-1",
            "rounds": rounds,
            "round_deadline_s": 1e5,
            "wait_for": "all",
            "kinds": kinds,
        },
    }
    notes = Notes()
    simulate(prepare(scenario.load("uniform", tables), seed), observer=notes)
    return 100 * mean(notes.accuracies[-4:]), mean(notes.joules)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    registry.register(OneForm)
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in range(options.seeds):
        for form in ("", *FORMS):
            for division in DIVISIONS:
                key = f"{form}/{division}/{seed}"
                if key not in results:
                    results[key] = run(form, division, seed, options.rounds)
                    options.out.write_text(json.dumps(results))
                    print(key, *results[key], flush=True)
    rows = []
    for form in FORMS:
        gains = [
            mean(
                results[f"{form}/{division}/{seed}"][0] - results[f"/{division}/{seed}"][0]
                for seed in range(options.seeds)
            )
            for division in DIVISIONS
        ]
        more_j = [results[f"{form}/{division}/0"][1] - results[f"/{division}/0"][1] for division in DIVISIONS]
        rows.append(
            (form, *(f"{gain:+.1f}" for gain in (*gains, mean(gains))), f"{mean(more_j) / STRAGGLERS:.1f}")
        )
    print(tabulate(rows, headers=("form", *DIVISIONS, "mean", "joules"), disable_numparse=True))


if __name__ == "__main__":
    main()
