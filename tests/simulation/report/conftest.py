"""A comparison that nobody ran: made-up runs in the folders where real ones would lie."""

import msgspec
import pytest

from device_runtime.simulation.compare.plan import Comparison, ComparisonPlan
from device_runtime.simulation.compare.run_folder import RecordWriter, RunInfo, fingerprint
from device_runtime.simulation.scenarios import scenario
from device_runtime.simulation.scenarios.scenario import of_policy

ROUNDS = 12
COMMAND = "device-runtime simulate fleet.toml --compare kinds=choose,drop"


@pytest.fixture(scope="session")
def comparison(tmp_path_factory, made_up):
    """A function of policies and seeds; the plan, every run of which is finished."""

    def make(policies=("choose", "drop"), seeds=2, **changes):
        task = {"rounds": ROUNDS, "round_deadline_s": 8.0}
        setting = scenario.load("digits", {"task": task, **changes})
        plan = ComparisonPlan(
            setting,
            Comparison(policies=policies, seeds=seeds, command=COMMAND),
            tmp_path_factory.mktemp("run"),
        )
        plan.save()
        for name in plan.names:
            folder = plan.of(name)
            folder.mkdir(parents=True)
            rounds, asks = made_up(name.policy, name.seed, ROUNDS)
            for file, lines in (("rounds.jsonl", rounds), ("asks.jsonl", asks)):
                with RecordWriter(folder / file) as files:
                    for line in lines:
                        files.add(line)
            info = RunInfo(
                policy=name.policy,
                seed=name.seed,
                sha256=fingerprint(of_policy(setting, name.policy), name.seed),
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
