"""Devices that lie, on real digits: what a few of them do to the plain mean, and not to a rule."""

import msgspec
import numpy as np
import pytest

from device_runtime.simulation.executors.job import PlainExecutor
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.robust import RULES

ALIKE = {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}
LIARS = 3
SCALES = [-10.0, pytest.param(1000.0, marks=pytest.mark.slow)]
HOLDING = [rule for rule in RULES if rule != "none"]


class Lying:
    """An executor some of whose devices send their change of the base times `scale`."""

    def __init__(self, inner, liars, scale):
        self._inner, self._liars, self._scale = inner, liars, scale
        self.name = inner.name

    def run(self, bases, jobs):
        for job, update in zip(jobs, self._inner.run(bases, jobs), strict=True):
            if job.name not in self._liars:
                yield update
                continue
            base = bases[job.base]
            turned = {n: base[n] + np.float32(self._scale) * (v - base[n]) for n, v in update.tensors.items()}
            yield type(update)(update.kind, turned, update.num_examples, update.train_loss, update.variant)

    def close(self):
        self._inner.close()


class Last(NullObserver):
    def closed(self, line):
        self.line = line


def accuracy(rule, scale, liars=LIARS):
    """After four rounds of ten devices with equal shares of the digits, from fresh parameters."""
    setting = scenario.load(
        "uniform",
        {
            "fleet": ALIKE,
            "devices": 10,
            "eval_every": 4,
            "data": {"partition": "iid"},
            "task": {
                "rounds": 4,
                "round_deadline_s": 1000.0,
                "kinds": [{"name": "full", "settings": {"epochs": 2}}],
                **({} if rule == "none" else {"robust": rule, "robust_trim": 0.3, "robust_byzantine": LIARS}),
            },
        },
    )
    prepared = prepare(setting, 0)
    names = sorted(prepared.scenario.fleet.draw(10, 0).name(i) for i in range(10))[:liars]
    last = Last()
    simulate(prepared, lambda inputs: Lying(PlainExecutor(inputs), names, scale), last)
    return last.line.eval_acc


@pytest.fixture(scope="module")
def honest():
    return accuracy("none", 1.0, liars=0)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES, ids=["turned round", "a thousand times"])
def test_three_liars_of_ten_break_the_plain_mean(honest, scale):
    assert honest > 0.8
    assert accuracy("none", scale) < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "multi-krum"])
def test_three_liars_of_ten_do_not_break_a_rule(honest, rule):
    assert accuracy(rule, -10.0) > honest - 0.15


@pytest.mark.slow
@pytest.mark.parametrize("rule", HOLDING)
@pytest.mark.parametrize("scale", [-10.0, 1000.0], ids=["turned round", "a thousand times"])
def test_three_liars_of_ten_break_no_rule_however_they_lie(honest, rule, scale):
    """Norm-clip lets them pull as strongly as three honest devices, and Krum learns of one device a round."""
    assert accuracy(rule, scale) > honest - (0.3 if rule in ("norm-clip", "krum") else 0.15)


def test_the_rule_stands_in_the_scenario_only_where_there_is_one():
    plain, robust = (scenario.load("digits", {"task": {"robust": rule}}) for rule in ("none", "median"))
    assert "robust" not in msgspec.json.decode(plain.json())["task"]
    assert msgspec.json.decode(robust.json())["task"]["robust"] == "median"
