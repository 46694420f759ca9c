"""Graphs that are allowed and compute for very long: the process that runs one is ended."""

import threading

import numpy as np
import psutil
import pytest

from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Plan
from device_runtime.device.backend import subprocess as working
from device_runtime.device.backend.subprocess import Subprocess
from device_runtime.device.connection.offers import OpenRound
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.device.traffic import LinkSpeed
from device_runtime.device.training.settings import Settings
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.graph_check import check_graph, delimited_field, fields, number_field
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg
from tests.device.backend.test_subprocess import (
    DAY_S,
    PAUSED,
    RuleVerdict,
    apart,
    measured,
    process,
    run_until_it_is_over,
    when_tried,
)

__all__ = ["apart", "measured"]  # fixtures

MODEL_GRAPH, NODE, INITIALISER, NODE_INPUT = 7, 1, 5, 1
SIDE, PRODUCTS = 2048, 50
"""17 billion operations a product: half a minute of one core, all in one run of the graph."""
FULL = registry.write(FedAvg(epochs=1, batch=20))


def node(operator, inputs, output):
    return delimited_field(
        NODE,
        b"".join(delimited_field(NODE_INPUT, name.encode()) for name in inputs)
        + delimited_field(2, output.encode())
        + delimited_field(4, operator.encode()),
    )


def integers(name, *values):
    data = np.asarray(values, "<i8").tobytes()
    return delimited_field(
        INITIALISER,
        number_field(1, len(values))
        + number_field(2, 7)
        + delimited_field(8, name.encode())
        + delimited_field(9, data),
    )


def long(onnx):
    """The same, but all that read x read x + 0 * (a chain of large products, made of x)."""

    def renamed(part):
        if part.number != NODE:
            return part.encoded
        return delimited_field(
            NODE,
            b"".join(
                delimited_field(NODE_INPUT, b"slow.x")
                if field.number == NODE_INPUT and field.content == b"x"
                else field.encoded
                for field in fields(part.content)
            ),
        )

    def slowed(graph):
        parts = list(fields(graph))
        slow = [
            integers("slow.size", SIDE, SIDE),
            node("ReduceMax", ["x"], "slow.most"),
            node("Reshape", ["slow.most", "slow.none"], "slow.scalar"),
            integers("slow.none", 1, 1),
            node("Expand", ["slow.scalar", "slow.size"], "slow.0"),
            *(node("MatMul", [f"slow.{n}", f"slow.{n}"], f"slow.{n + 1}") for n in range(PRODUCTS)),
            node("ReduceMin", [f"slow.{PRODUCTS}"], "slow.least"),
            node("Sub", ["slow.least", "slow.least"], "slow.nothing"),
            node("Reshape", ["slow.nothing", "slow.none"], "slow.one"),
            integers("slow.flat", -1),
            node("Reshape", ["slow.one", "slow.flat"], "slow.last"),
            node("Add", ["x", "slow.last"], "slow.x"),
        ]
        return b"".join(slow) + b"".join(map(renamed, parts))

    return b"".join(
        delimited_field(MODEL_GRAPH, slowed(field.content)) if field.number == MODEL_GRAPH else field.encoded
        for field in fields(onnx)
    )


@pytest.fixture
def endless(bundle, tmp_path):
    """A bundle of which every graph that trains is endless, and none else."""
    graphs = {
        name: long(bundle.graph(name)) if name.startswith("train.") else bundle.graph(name)
        for name in bundle.manifest.graphs
    }
    return bundles.write(tmp_path / "endless", bundle.manifest, bundle.weights(), graphs)


def begun(apart, endless, monkeypatch, act):
    """An offer of it to a device that has measured the bundle already: `act` is called when it trains."""
    monkeypatch.setattr(working, "CLOSED_SILENT_S", 2.0)
    monkeypatch.setattr(working, "PAUSED_SILENT_S", 2.0)
    text = (apart.folder / "speed.json").read_text().replace(apart.bundle.sha256, endless.sha256)
    (apart.folder / "speed.json").write_text(text)
    apart.agent.close()
    apart.start(boot=2)
    pids = []
    when_tried(apart, lambda: (pids.append(process(apart).pid), act()))
    apart.link.announce(apart.offer(number=2, bundle=endless, kinds=(FULL,), remaining_s=DAY_S))
    return pids


@pytest.fixture
def know_speeds(apart):
    """The speed of this machine, so that it is not measured with graphs that do not end."""
    apart.link.announce(apart.offer(kinds=(registry.write(ClassMeans()),)))
    apart.go()
    return apart


@pytest.mark.slow
def test_work_that_never_ends_is_ended_when_its_round_has_closed_and_the_next_round_is_worked_on(
    know_speeds, endless, monkeypatch
):
    pids = begun(know_speeds, endless, monkeypatch, lambda: setattr(know_speeds.clock, "skipped", 2 * DAY_S))
    assert know_speeds.go().contributions == []
    why = "the process that worked on it was ended: it said nothing for 2 s when its round had closed"
    assert f"full given up: {why}" in know_speeds.link.of(Plan)[-1].reasons
    assert know_speeds.link.of(Plan)[-1].kind == ""
    assert not psutil.pid_exists(pids[0])
    know_speeds.link.announce(know_speeds.offer(number=3))
    assert [sent.round for sent in know_speeds.go().contributions] == [3]


@pytest.mark.slow
def test_work_that_does_not_stand_still_when_the_rules_say_no_is_ended(know_speeds, endless, monkeypatch):
    alive = []

    def judge(_rules):
        looks = know_speeds.link.of(Plan)
        if pids and not alive:
            if psutil.pid_exists(pids[0]):
                threading.Event().wait(0.1)
            else:
                alive.append(False)
        return PAUSED if looks and not alive else RuleVerdict()

    pids = begun(know_speeds, endless, monkeypatch, know_speeds.agent.work_gate.look_again)
    know_speeds.agent.work_gate.judge = judge
    run_until_it_is_over(know_speeds)
    assert (know_speeds.contributions, alive) == ([], [False])
    why = "it did not pause within 2 s"
    assert any(why in reason for plan in know_speeds.link.of(Plan) for reason in plan.reasons)


def test_anything_else_that_says_nothing_for_an_hour_is_ended(stage, endless, monkeypatch):
    monkeypatch.setattr(working, "SILENT_S", 5.0)
    backend = Subprocess(
        Settings("a", stage.folder / "a.npz", stage.folder), WorkGate(stage.clock), LinkSpeed()
    )
    offer = stage.offer(bundle=endless)
    for content in stage.contents.values():
        Blobs(stage.folder / "blobs").put(content)
    with pytest.raises(working.WorkDied, match="ended: it said nothing for 5 s"):
        backend.preview(OpenRound(offer, 1e9))
    assert backend._worker.child is None


def test_such_a_graph_is_allowed_so_that_only_the_clock_ends_it(endless):
    assert check_graph(endless.graph("train.all")) == set()
