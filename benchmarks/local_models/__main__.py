"""Measures how far the local models of a round drift apart, and what they predict.

As in Shi 2025, sections 6.7 to 6.9 and 4.4.

    .venv/bin/python -m benchmarks.local_models digits --policies choose,drop --out runs/local-models
    .venv/bin/python -m benchmarks.local_models digits --rounds 4 --probed 2      # a look

Simulates a scenario under each policy with one seed. In some rounds it compares the features of up to ten
locally updated models on 256 test samples, by linear CKA (Kornblith et al. 2019), unbiased (HSIC_1 of Song
et al. 2012), at each level that the bundle has: near 0 for unrelated features, 1 if equal but for rotation
and scale. Only updates of more than the head are compared. Writes drift.png (the mean over pairs),
similarity.png (every pair) and predictions.png: mean logits of test samples by true class, of one local model
of each kind, in which stripes are a bias to the classes that the device has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
from tabulate import tabulate

from device_runtime.models.available_engines.available import open_model
from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.executors.job import Executor, ExecutorInputs
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy

from . import pictures
from .probes import ProbeLine, Probes, ProbeSet, spread_rounds


def probe(scenario: Scenario, policy: str, seed: int, probed: int) -> Sequence[ProbeLine]:
    """Simulates a policy, and compares the local models of `probed` rounds."""
    own = of_policy(scenario, policy)
    prepared = prepare(own, seed)
    model, lines = open_model(prepared.inputs.bundle), list[ProbeLine]()
    rounds = spread_rounds(own.task.rounds, probed)
    probes = Probes(model, ProbeSet.of(prepared.data, model), rounds, lines.append)

    def executor(inputs: ExecutorInputs) -> Executor:
        kinds = [kind.strategy for kind in own.task.kinds]
        return probes.over(choice.make(inputs, ExecutorRequest(), kinds))

    simulate(prepared, executor, probes)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", help="a preset or a file, as of `device-runtime simulate`")
    parser.add_argument("--policies", default="choose", help="separated by commas")
    parser.add_argument("--rounds", type=int, help="default: the scenario's")
    parser.add_argument("--probed", type=int, default=3, help="the rounds of which models are compared")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/local-models"))
    options = parser.parse_args()
    scenario = scenarios.load(options.scenario)
    if options.rounds:
        scenario = msgspec.structs.replace(
            scenario, task=msgspec.structs.replace(scenario.task, rounds=options.rounds)
        )
    policies = options.policies.split(",")
    probed = {policy: probe(scenario, policy, options.seed, options.probed) for policy in policies}
    rows = [
        (policy, line.round, len(line.devices), level, f"{mean:.3f}")
        for policy, lines in probed.items()
        for line in lines
        for level, mean in line.means.items()
    ]
    print(tabulate(rows, ("policy", "round", "models", "level", "mean CKA"), disable_numparse=True))
    options.out.mkdir(parents=True, exist_ok=True)
    labels = prepare(of_policy(scenario, policies[0]), options.seed).data.labels
    for drawing in (
        pictures.drift(probed),
        pictures.similarity(probed),
        pictures.predictions(probed, labels),
    ):
        if drawing is not None:
            drawing.save(options.out / f"{drawing.name}.png")
            print(options.out / f"{drawing.name}.png")


if __name__ == "__main__":
    main()
