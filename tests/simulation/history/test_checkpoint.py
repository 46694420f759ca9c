"""A run that is stopped after any round goes on as if it had not been."""

from dataclasses import asdict

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.tasks import systems
from device_runtime.models.bundles import tensors
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.history import checkpoint
from device_runtime.simulation.history.bases import BaseVersion, RoundBase
from device_runtime.simulation.history.checkpoint import Checkpoint, StrategyStates
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.scenarios import scenario

TASKS = {
    "synchronous": {"rounds": 4, "round_deadline_s": 3.0, "late": "count"},
    "buffered": {"rounds": 5, "buffer_size": 2, "devices_per_round": 4, "round_deadline_s": 3.0},
    "steps alone": {"rounds": 3, "round_deadline_s": 30.0, "kinds": [{"name": "zeroth-order"}]},
}


class Notes:
    def __init__(self):
        self.asks, self.lines = [], []

    def asked(self, ask):
        self.asks.append(repr(asdict(ask)))

    def trained(self, job, update):
        pass

    def closed(self, line):
        self.lines.append(repr(asdict(line)))


CASES = [
    pytest.param(task, id=name, marks=[] if name == "synchronous" else [pytest.mark.slow])
    for name, task in TASKS.items()
]


@pytest.mark.parametrize("task", CASES)
def test_a_run_goes_on_from_any_round_with_the_same_bytes(task, tmp_path):
    over = {"devices": 6, "slow": 20.0, "data": {"samples_per_client": 30}, "task": task}
    goes_on_with_the_same_bytes(prepare(scenario.load("boards", over), 3), tmp_path)


@pytest.mark.slow
def test_a_run_of_late_crashed_and_returning_devices_goes_on_with_the_same_bytes(tmp_path):
    trouble = {"crash": 0.2, "drop": 0.4, "away_s": 70.0, "away_sigma": 1.0}
    groups = {"all": {"profile": "pi-5", "share": 1.0, "failures": trouble, "battery": {"wh": 1e-3}}}
    task = {"rounds": 8, "late": "count", "max_staleness": 2, "kinds": [{"name": "few-shot"}]}
    over = {"fleet": {"name": "troubled", "groups": groups}, "devices": 8, "task": task}
    prepared = prepare(scenario.load("boards", {**over, "data": {"samples_per_client": 10}}), 3)
    whole = goes_on_with_the_same_bytes(prepared, tmp_path)
    assert any("'fate': 'crashed'" in ask for ask in whole.asks)
    assert not all("'staleness': 0.0," in line for line in whole.lines)


@pytest.mark.slow
def test_a_run_in_which_devices_hold_samples_out_goes_on_with_the_same_bytes(tmp_path):
    """The head in closed form lies beside the base, and the counts with the pool."""
    kinds = [{"name": "full", "settings": {"epochs": 1, "batch": 16}}, {"name": "few-shot"}]
    task = {"rounds": 4, "kinds": kinds, "statistics": {"hold_out": 0.2}}
    over = {"devices": 6, "data": {"samples_per_client": 30}, "task": task}
    goes_on_with_the_same_bytes(prepare(scenario.load("uniform", over), 3), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "task"),
    [
        (
            "moon+fedadam",
            {"late": "count", "buffer_size": 3, "devices_per_round": 5, "round_deadline_s": 9.0},
        ),
        ("fscprox", {"rounds": 5}),
        ("heterofl", {"rounds": 4, "round_deadline_s": 0.4}),
    ],
)
def test_a_run_with_a_family_and_with_memories_goes_on_with_the_same_bytes(system, task, exported, tmp_path):
    settings = {"epochs": 2, "lr": 0.05}
    kinds = [{"name": "full", "settings": {**settings, "terms": {"fscprox": {"mu": 0.1}}}}]
    family = {"bundle": exported.tuned}
    if system == "heterofl":
        family = {"bundle": exported.taught, "family": [exported.half]}
        kinds = [
            {"name": name, "settings": settings | more}
            for name, more in (("full", {}), ("width-slice", {"members": ["half"]}))
        ]
    over = {
        "fleet": "boards",
        "devices": 8,
        "slow": 200.0,
        "data": {"samples_per_client": 30},
        "task": {"rounds": 6, **family, "kinds": kinds, **task},
    }
    setting = scenario.load("uniform", over)
    setting = msgspec.structs.replace(setting, task=systems.task_as_system(system, setting.task))
    whole = goes_on_with_the_same_bytes(prepare(setting, 3), tmp_path)
    if system == "heterofl":
        assert {kind for kind in ("'full'", "'width-slice'") for ask in whole.asks if kind in ask} == {
            "'full'",
            "'width-slice'",
        }


def goes_on_with_the_same_bytes(prepared, tmp_path):
    """From its first checkpoint and from its last but one; what was told of the whole run."""
    rounds, checkpoints, whole = prepared.scenario.task.rounds, [], Notes()
    served = simulate(prepared, observer=whole, keeping=ResumeOptions(keep=checkpoints.append))
    assert [saved.round for saved in checkpoints] == list(range(1, rounds + 1))
    for start in (checkpoints[0], checkpoints[-2]):
        checkpoint.save(start, tmp_path)
        rest, more = Notes(), []
        again = simulate(
            prepared, observer=rest, keeping=ResumeOptions(checkpoint.load(tmp_path), more.append)
        )
        assert tensors.encode(again) == tensors.encode(served)
        assert rest.lines == whole.lines[start.round :]
        assert rest.asks == whole.asks[len(whole.asks) - len(rest.asks) :]
        assert [later.round for later in more] == list(range(start.round + 1, rounds + 1))
    return whole


def test_what_was_saved_is_read_back(tmp_path):
    def weights(value):
        return {"head.weight": np.full((2, 3), value, np.float32)}

    history = (
        BaseVersion({"": (0, 0), "small": (0,)}),
        BaseVersion({"": (0, 2), "small": (2,)}, 0, 1, 8, 1, (False, True)),
        BaseVersion({"": (0, 2), "small": (2,)}, 0, 4, 32, 4, (True, True), aside=3, aside_bytes=88),
    )
    bases = (
        RoundBase(2, weights(2), {"small": weights(5)}),
        RoundBase(3, weights(3), {"small": weights(6)}, {"sums": np.ones(1)}, rare=(4, 1)),
    )
    states = StrategyStates({"fedat": weights(8)}, {(7, "full"): weights(9), (11, "full"): {}})
    checkpoint.save(Checkpoint(2, bases, history, weights(7), states), tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert (loaded.round, loaded.history) == (2, history)
    firsts = [
        (b.number, *(m["head.weight"][0, 0] for m in (b.weights, b.family["small"]))) for b in loaded.bases
    ]
    assert firsts == [(2, 2, 5), (3, 3, 6)]
    assert [list(base.aside) for base in loaded.bases] == [[], ["sums"]]
    assert [base.rare for base in loaded.bases] == [(), (4, 1)]
    assert loaded.served["head.weight"][0, 0] == 7
    assert loaded.states.aggregator["fedat"]["head.weight"][0, 0] == 8
    assert loaded.states.devices[7, "full"]["head.weight"][0, 0] == 9
    assert loaded.states.devices[11, "full"] == {}


def test_nothing_saved_is_nothing_and_a_damaged_file_is_said_to_be(tmp_path):
    assert checkpoint.load(tmp_path) is None
    base = RoundBase(1, {"w": np.ones(2, np.float32)})
    checkpoint.save(Checkpoint(0, (base,), (BaseVersion({"": (0,)}),), base.weights), tmp_path)
    whole = tensors.decode((tmp_path / checkpoint.FILE).read_bytes())
    for content in (
        b"not at all",
        tensors.encode({"head.weight": whole["1/w"]}),
        tensors.encode({**whole, checkpoint.CONTENTS: np.zeros(3, np.uint8)}),
        tensors.encode({**whole, checkpoint.CONTENTS: whole[checkpoint.CONTENTS][:-1]}),
        tensors.encode({**whole, "head/w": whole["1/w"]}),
        tensors.encode({**whole, "17/w": whole["1/w"]}),
    ):
        (tmp_path / checkpoint.FILE).write_bytes(content)
        with pytest.raises(SimulationError, match="is not a checkpoint"):
            checkpoint.load(tmp_path)
