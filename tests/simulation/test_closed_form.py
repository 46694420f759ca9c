"""A fleet whose stragglers hold classes of their own, with and without a head in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.statistics import closed_form


def fleet_of(speed, up):
    """Its slow devices have this part of the others' speed, those far away send so many bytes a second."""
    groups = {
        "fast": {"profile": "phone-high", "share": 0.4},
        "slow": {"profile": "phone-high", "share": 0.4, "speed": {"factor": speed}},
        "far": {"profile": "phone-high", "share": 0.2, "link": {"up_bytes_per_s": up}},
    }
    return {"name": "two speeds", "groups": groups}


KINDS = [
    {"name": "full", "settings": {"epochs": 2, "lr": 0.05, "batch": 16}},
    {"name": "class-means", "settings": {"head": "trained"}},
    {"name": "zeroth-order"},
]
ONLY = {"slow": 8, "far": 9}


class Notes:
    def __init__(self):
        self.kinds, self.lines, self.whys = {}, [], {}

    def asked(self, ask):
        self.kinds.setdefault(ask.group, set()).add(ask.kind)
        self.whys.setdefault(ask.group, set()).add(ask.why.split("; ")[-1])

    def trained(self, job, update):
        pass

    def closed(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def play():
    """A run of four rounds with this task: what its devices sent, its lines, and the served model."""

    def played(speed=0.1, head="trained", up=95, **settings):
        task = {"kinds": KINDS, "head": head, "wait_for": "all", **settings}
        table = {
            "fleet": fleet_of(speed, up),
            "devices": 20,
            "slow": 3000.0,
            "data": {"source": "digits", "partition": "iid"},
            "task": {"rounds": 4, "round_deadline_s": 30.0, "start": "random", **task},
        }
        prepared = prepare(scenario.load("uniform", table), seed=1)
        clients, fleet = prepared.inputs.clients, prepared.scenario.fleet.draw(20, 1)
        groups = [fleet.group(device) for device in range(20)]
        parts: list[list[int]] = [[] for _ in groups]
        for label in range(10):
            holders = [i for i, group in enumerate(groups) if label < 8 or ONLY.get(group) == label]
            dealt = np.array_split(np.flatnonzero(clients.y == label), len(holders))
            for device, some in zip(holders, dealt, strict=True):
                parts[device] += some.tolist()
        own = Clients.of(clients.x, clients.y, [np.array(part) for part in parts])
        notes = Notes()
        served = simulate(replace(prepared, inputs=replace(prepared.inputs, clients=own)), observer=notes)
        return notes, served

    return played


@pytest.mark.slow
def test_the_classes_of_stragglers_are_recognised_with_the_head_in_closed_form_alone(play):
    without, _ = play()
    with_it, served = play(head="closed-form", statistics={"numbers": "int8"})
    for notes, far in ((without, "zeroth-order"), (with_it, "class-means")):
        assert notes.kinds == {"fast": {"full"}, "slow": {"class-means"}, "far": {far}}
    trained, closed = without.lines[-1], with_it.lines[-1]
    assert max(trained.eval_acc_by_class[8:]) < 0.2
    assert min(closed.eval_acc_by_class[8:]) > 0.5
    assert closed.eval_acc == closed.closed_form_eval_acc > closed.base_eval_acc
    assert closed.eval_acc_by_class == closed.closed_form_eval_acc_by_class
    assert max(closed.base_eval_acc_by_class[8:]) < 0.2
    assert np.isnan(trained.closed_form_eval_acc)
    again = play(head="closed-form", statistics={"numbers": "int8"})[1]
    assert all(np.array_equal(served[name], again[name]) for name in served)


@pytest.mark.slow
def test_devices_too_slow_to_measure_all_samples_take_part_with_some_and_their_class_is_recognised(play):
    """71 samples take them 35 s of 30, 40 take 20 s."""
    sits_out, _ = play(speed=0.05, head="closed-form", statistics={"samples": 0})
    takes_part, _ = play(speed=0.05, head="closed-form")
    assert sits_out.kinds["slow"] == {""}
    assert takes_part.kinds["slow"] == {"class-means"}
    assert sits_out.lines[-1].eval_acc_by_class[ONLY["slow"]] == 0
    assert takes_part.lines[-1].eval_acc_by_class[ONLY["slow"]] > 0.5


@pytest.mark.slow
def test_devices_that_hold_samples_out_choose_the_head_in_place_of_the_evaluation_data():
    """Each holds 6 of 60 samples out, and counts them in three rounds, of which older ones weigh less."""
    kinds = [{"name": "full", "settings": {"epochs": 1, "lr": 0.05, "batch": 16}}, {"name": "few-shot"}]
    task = {"rounds": 4, "kinds": kinds, "head": "closed-form"}

    def played(**statistics):
        data = {"source": "digits", "samples_per_client": 60}
        over = {"devices": 8, "data": data, "task": {**task, "statistics": statistics}}
        notes, checkpoints = Notes(), []
        simulate(
            prepare(scenario.load("uniform", over), 1),
            observer=notes,
            keeping=ResumeOptions(keep=checkpoints.append),
        )
        return notes.lines[-1], checkpoints[-1]

    last, checkpoint = played(hold_out=0.1)
    total, closed, trained = checkpoint.states.aggregator[closed_form.MEMORY]["right"]
    assert 2 * 8 * 6 < total < 3 * 8 * 6
    assert 0 < trained <= total and 0 < closed <= total
    assert "closed-form/head.weight" in checkpoint.bases[-1].aside
    assert 0 < last.closed_form_eval_acc != last.base_eval_acc > 0
    is_trained = trained - closed > total**0.5
    assert last.eval_acc == (last.base_eval_acc if is_trained else last.closed_form_eval_acc)
    without, plain = played()
    assert plain.bases[-1].aside == {}
    assert last.bytes_down - without.bytes_down > 8 * 4 * 650


@pytest.mark.slow
def test_a_link_too_narrow_for_all_classes_carries_the_rarest_and_it_is_recognised(play):
    """In the 27 s that a plan fills 243 bytes go up, or 324: of one class it takes 266, of all nine 858."""
    sits_out, _ = play(head="closed-form", kinds=KINDS[:2], up=9)
    takes_part, _ = play(head="closed-form", kinds=KINDS[:2], up=12)
    assert (sits_out.kinds["far"], takes_part.kinds["far"]) == ({""}, {"class-means"})
    assert takes_part.whys["far"] == {"class-means sends class statistics of 1 of 9 classes"}
    assert sits_out.lines[-1].eval_acc_by_class[ONLY["far"]] == 0
    assert takes_part.lines[-1].eval_acc_by_class[ONLY["far"]] > 0.5
    assert min(takes_part.lines[-1].eval_acc_by_class) > 0.5
