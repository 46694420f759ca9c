"""FedNCM+FT and LP+FT (thesis 000, section 3.1.3): the head first, then everything."""

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario

QUICK = [{"name": kind, "settings": {"epochs": 2, "lr": 0.05}} for kind in ("full", "peft")]
HEAD = {"head.weight", "head.bias"}


class Notes(NullObserver):
    def __init__(self):
        self.lines, self.kinds = [], {}

    def asked(self, ask):
        self.kinds.setdefault(ask.round, set()).add(ask.kind)

    def closed(self, line):
        self.lines.append(line)


def play(policy, rounds):
    """The served weights and what was noted; four devices hold all ten digits between them."""
    over = {
        "devices": 4,
        "data": {"max_train": 400, "max_test": 100, "partition": "dirichlet", "alpha": 0.1},
        "task": {"rounds": rounds, "round_deadline_s": 1e6, "kinds": QUICK},
    }
    setting = scenario.of_policy(scenario.load("uniform", over), policy)
    notes = Notes()
    return simulate(prepare(setting, seed=3), observer=notes), notes


def changed(served):
    before = Bundle.open(bundles.find_bundle("digits-wrn-10-1")).weights()
    return {name for name, value in served.items() if not np.array_equal(value, before[name])}


@pytest.mark.parametrize(
    "policy",
    [
        "fedncm+ft",
        *(pytest.param(f"fedncm+ft+{more}", marks=pytest.mark.slow) for more in ("fedadam", "fedprox")),
    ],
)
def test_fedncm_sets_the_head_in_one_round_and_the_next_trains_everything(policy):
    weights_, first = play("fedncm", 1)
    assert changed(weights_) == {"head.weight"}  # the bias is 0 as it was
    np.testing.assert_allclose(np.linalg.norm(weights_["head.weight"], axis=1), 1, rtol=1e-6)
    served, notes = play(policy, 4)
    assert notes.kinds == {1: {"class-means"}, 2: {"full"}, 3: {"full"}, 4: {"full"}}
    begun = notes.lines[0]
    assert (begun.eval_acc, begun.base_eval_acc) == (first.lines[0].eval_acc,) * 2
    assert begun.eval_acc > 0.4
    assert changed(served) > HEAD
    assert notes.lines[-1].eval_loss < begun.eval_loss


def test_linear_probing_changes_the_head_alone_until_everything_is_trained():
    probed, _ = play("lp", 2)
    assert changed(probed) == HEAD
    served, notes = play("lp+ft", 4)
    stages = [notes.kinds[number] for number in (1, 2, 3, 4)]
    assert stages == sorted(stages, key=lambda kinds: kinds == {"full"})
    assert (stages[0], stages[-1]) == ({"peft"}, {"full"})
    assert changed(served) > HEAD
    assert notes.lines[-1].eval_loss < notes.lines[0].eval_loss


def test_a_scenario_keeps_its_own_settings_of_each_stage():
    setting = scenario.of_policy(
        scenario.load("uniform", {"task": {"rounds": 3, "kinds": QUICK}}), "fedncm+ft"
    )
    assert msgspec.to_builtins(setting.task.kinds[1].settings) == QUICK[0]["settings"]
