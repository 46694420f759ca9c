"""A comparison that nobody ran: made-up runs in the folders where real ones would lie."""

import msgspec
import numpy as np
import pytest

from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan
from device_runtime.simulation.compare.run_folder import RecordWriter, RunInfo, fingerprint
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.metrics.probes import PredictionHeatMap, ProbeLine
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import of_policy

ROUNDS = 12
COMMAND = "device-runtime simulate fleet.toml --compare kinds=choose,drop"


def _probe(number, rng):
    matrix = np.clip(rng.normal(0.7, 0.1, (4, 4)), 0, 1)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T + np.eye(4)
    rows = tuple(map(tuple, matrix.tolist()))
    heat = tuple(map(tuple, (rng.normal(size=(10, 10)) + 3 * np.eye(10)).tolist()))
    return ProbeLine(
        round=number,
        devices=("a", "b", "c", "d"),
        cka={"low": rows, "head": rows},
        means={"low": 0.8, "head": float(matrix[np.triu_indices(4, 1)].mean())},
        heat=(PredictionHeatMap("full", "pi-5-00", heat), PredictionHeatMap("few-shot", "zero-01", heat)),
    )


@pytest.fixture(scope="session")
def comparison(tmp_path_factory, made_up):
    """A function of policies and seeds; the plan, every run of which is finished."""

    def make(policies=("choose", "drop"), seeds=2, probed=True, **changes):
        task = {"rounds": ROUNDS, "round_deadline_s": 8.0}
        mine = scenario.load("digits", {"task": task, **changes})
        plan = ComparisonPlan(
            mine, Comparison(policies=policies, seeds=seeds, command=COMMAND), tmp_path_factory.mktemp("run")
        )
        plan.save()
        for name in plan.names:
            folder = plan.of(name)
            folder.mkdir(parents=True)
            rounds, asks = made_up(name.policy, name.seed, ROUNDS)
            for stem, kind, lines in (("rounds", SimulatedRound, rounds), ("asks", AskRecord, asks)):
                with RecordWriter(folder, stem, kind) as files:
                    for line in lines:
                        files.add(line)
            rng = np.random.default_rng(name.seed)
            probes = [_probe(number, rng) for number in (1, 6, 12)] if probed else []
            (folder / "probes.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(probes))
            info = RunInfo(
                policy=name.policy,
                seed=name.seed,
                sha256=fingerprint(of_policy(mine, name.policy), name.seed),
                executor="plain",
                finished=True,
                seconds=3.0,
                labels=tuple(str(label) for label in range(10)),
                params_sent={"full": 77_850, "few-shot": 650},
                versions={"python": "3.11"},
            )
            (folder / "run.json").write_bytes(msgspec.json.encode(info))
        return plan

    return make
