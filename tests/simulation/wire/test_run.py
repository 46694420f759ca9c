"""Whole runs: kinds, time, determinism, and faults that cost nothing but time."""

from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.machine.run_events import RoundExtended, RoundOpened
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.topics import TopicError
from device_runtime.device.selection.choose import MAIN, choose
from device_runtime.models.bundles import tensors
from device_runtime.profiles import Bandwidth
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.strategies.training.workload import workload
from tests.simulation.wire.broker import AGGREGATOR
from tests.simulation.wire.run import AggregatorKilled, Crash, LinkLost, WireCourse, run_on_wire

MIDDLE = 0.5


def kinds(finished):
    """{(round, device): kind} of what counted."""
    return {(record.round, record.device): record.kind for _, record in finished.contributions}


def counted(finished, device, number=1):
    """(when, record) of this device's contribution to a round."""
    return next(
        pair_ for pair_ in finished.contributions if (pair_[1].device, pair_[1].round) == (device, number)
    )


def opened(finished, number):
    return next(at for at, what in finished.events if isinstance(what, RoundOpened) and what.round == number)


def same(left, other):
    return tensors.encode(left.weights) == tensors.encode(other.weights)


@pytest.mark.slow
def test_every_device_sends_the_richest_kind_that_it_is_predicted_to_afford(
    undisturbed, mixed, members, bundle
):
    chosen = kinds(undisturbed)
    assert Counter(kind for (number, _), kind in chosen.items() if number == 3) == {
        "full": 3,
        "entropy-subset": 1,
        "class-means": 1,
        "few-shot": 1,
    }
    assert chosen[1, "pi-zero"] == "class-means"  # few-shot is offered from round 2 on
    for member in members:
        load = workload(bundle.manifest, tuple(np.bincount(member.y, minlength=10).tolist()))
        for number in (1, 2, 3):
            offered = [kind.strategy for kind in mixed.offered(number)]
            plan = choose(
                member.profile, offered, {MAIN: replace(load, download_bytes=0)}, mixed.round_deadline_s
            )
            assert chosen[number, member.name] == plan.chosen.kind


def test_all_three_rounds_count_everyone_and_the_model_learns(undisturbed):
    assert [(r.round, r.participants) for r in undisturbed.rounds] == [(1, 6), (2, 6), (3, 6)]
    assert not any(isinstance(what, RoundExtended) for _, what in undisturbed.events)
    assert undisturbed.rounds[2].eval_acc > undisturbed.rounds[0].eval_acc > 0.3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_messages_and_the_same_bytes(undisturbed, mixed, members):
    again = run_on_wire(mixed, members, WireCourse(seed=1, until_s=100))
    assert again.log == undisturbed.log
    assert same(again, undisturbed)
    assert again.seconds == undisturbed.seconds


@pytest.mark.parametrize(
    ("kind", "uplink", "latency_s"),
    [("class-means", 500.0, 0.0), ("full", 60_000.0, 0.0), ("full", 1e5, 0.02)],
)
def test_an_update_arrives_when_operations_and_bytes_say(one_member, bundle, kind, uplink, latency_s):
    """A Pi Zero 2 W, 100 times slower; round 1, whose base it has had since the lobby."""
    member = one_member("pi-zero-2w", latency_s, bandwidth=Bandwidth(uplink, 1e6))
    speed = replace(member.profile.speed, flops_per_s=member.profile.speed.flops_per_s / 100)
    member = replace(member, profile=replace(member.profile, speed=speed))
    settings = {"epochs": 2} if kind == "full" else {}
    task = Task(
        bundle="digits-wrn-10-1",
        rounds=1,
        round_deadline_s=600.0,
        kinds=(KindSettings(name=kind, settings=settings),),
    )
    finished = run_on_wire(task, [member], WireCourse(until_s=1000))
    [(came_s, record)] = finished.contributions
    graphs = bundle.manifest.graphs
    passes = {"class-means": 40 * graphs["forward"].flops, "full": 80 * graphs["train.all"].flops}
    compute_s = passes[kind] / speed.flops_per_s
    began_s, sent = opened(finished, 1), topics.up("alone", "")
    up_bytes = sum(
        p.size
        for p in finished.log
        if p.up and p.topic.startswith(sent) and began_s < p.at_s <= came_s and not p.topic.endswith("plan")
    )  # the plan goes up while the device computes
    assert record.train_time_s == pytest.approx(compute_s, rel=1e-3)
    # the offer comes, the contribution goes; a full update is then asked for (twice), and comes
    ways = 2 + 3 * (kind == "full")
    expected = compute_s + up_bytes / uplink + ways * latency_s
    assert came_s - began_s == pytest.approx(expected, rel=0.01)
    assert min(compute_s, up_bytes / uplink) > 0.1 * expected  # neither is lost in the tolerance


@pytest.mark.slow
def test_a_device_that_dies_while_it_computes_comes_back_and_answers_the_round(undisturbed, mixed, members):
    came_s, record = counted(undisturbed, "jetson")
    at_s = came_s - MIDDLE * record.train_time_s
    finished = run_on_wire(
        mixed, members, WireCourse(seed=1, faults=(Crash(at_s, at_s + 0.2, "jetson"),), until_s=100)
    )
    assert [(r.round, r.participants) for r in finished.rounds] == [(1, 6), (2, 6), (3, 6)]
    again_s, _ = counted(finished, "jetson")
    assert again_s > at_s + 0.2
    others = {key: kind for key, kind in kinds(undisturbed).items() if key != (1, "jetson")}
    assert others.items() <= kinds(finished).items()


@pytest.mark.slow
def test_a_device_that_dies_before_the_receipt_sends_what_it_has_on_disk(undisturbed, mixed, members):
    """It has trained, and is asked for the blocks of its update: nothing is trained again."""
    came_s, record = counted(undisturbed, "jetson")
    at_s = came_s - 0.02  # of the 0.036 s that 285 kB take at 8 MB/s
    crash = Crash(at_s, at_s + 0.2, "jetson")
    finished = run_on_wire(mixed, members, WireCourse(seed=1, faults=(crash,), until_s=100))
    again_s, again = counted(finished, "jetson")
    assert again_s > at_s + 0.2
    assert [what.kind for _, what in finished.plans if (what.device, what.round) == ("jetson", 1)] == [
        "entropy-subset 50%"
    ]
    assert replace(again, bytes_up=0, bytes_down=0) == replace(record, bytes_up=0, bytes_down=0)
    assert same(finished, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("keepalive_s", [0.2, 30.0])
def test_a_link_that_is_lost_while_an_update_is_on_its_way_delays_it_only(
    undisturbed, mixed, members, keepalive_s
):
    """With the short keep-alive the last will is spoken while the device is away, and it comes back."""
    came_s, _ = counted(undisturbed, "phone-c")
    loss = LinkLost(came_s - 0.01, came_s + 0.5, "phone-c")
    finished = run_on_wire(mixed, members, WireCourse(1, (loss,), keepalive_s, until_s=100))
    assert counted(finished, "phone-c")[0] > came_s + 0.5
    assert kinds(finished) == kinds(undisturbed)
    assert same(finished, undisturbed)


@pytest.mark.slow
def test_a_link_that_is_lost_while_a_device_computes_changes_nothing(undisturbed, mixed, members):
    """Its link says that it is back; it sends what it has when it has computed, once."""
    came_s, record = counted(undisturbed, "jetson")
    at_s = came_s - MIDDLE * record.train_time_s
    loss = LinkLost(at_s, at_s + 0.1, "jetson")
    finished = run_on_wire(mixed, members, WireCourse(seed=1, faults=(loss,), until_s=100))
    assert counted(finished, "jetson")[0] == pytest.approx(came_s, abs=0.01)
    assert kinds(finished) == kinds(undisturbed)
    assert same(finished, undisturbed)


@pytest.mark.slow
def test_of_a_cohort_only_those_who_are_asked_take_part(mixed, members):
    task = msgspec.structs.replace(
        mixed, devices_per_round=2, min_contributions=1, round_deadline_s=5.0, wait_for="all"
    )
    finished = run_on_wire(task, members, WireCourse(seed=1, until_s=100))
    took_part = [{device for number, device in kinds(finished) if number == round_} for round_ in (1, 2, 3)]
    assert [len(devices) for devices in took_part] == [2, 2, 2]
    assert len(set.union(*took_part)) > 2
    assert [plan.round for _, plan in finished.plans if plan.device not in set.union(*took_part)] == []


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["in the middle of an upload", "after three contributions"])
def test_an_aggregator_that_is_killed_goes_on_where_it_was(undisturbed, mixed, members, phase):
    came = sorted(at for at, record in undisturbed.contributions if record.round == 2)
    at_s = counted(undisturbed, "jetson", 2)[0] - 0.02 if phase.startswith("in") else came[2] + 0.001
    killed = AggregatorKilled(at_s, at_s + 1.0)
    finished = run_on_wire(mixed, members, WireCourse(seed=1, faults=(killed,), until_s=100))
    assert [(r.round, r.participants) for r in finished.rounds] == [(1, 6), (2, 6), (3, 6)]
    assert kinds(finished) == kinds(undisturbed)
    assert same(finished, undisturbed)
    assert sum(isinstance(what, RoundOpened) and what.again for _, what in finished.events) == 1


@pytest.mark.slow
def test_a_device_that_never_comes_back_costs_a_round_its_deadline(mixed, members, undisturbed):
    task_of_five = msgspec.structs.replace(mixed, min_contributions=5)
    at_s = opened(undisturbed, 2) + 0.1
    finished = run_on_wire(
        task_of_five,
        members,
        WireCourse(seed=1, faults=(Crash(at_s, device="jetson"),), keepalive_s=10, until_s=100),
    )
    assert [r.participants for r in finished.rounds] == [6, 5, 5]
    assert finished.rounds[1].duration_s == pytest.approx(2.8)
    assert not any(isinstance(what, RoundExtended) for _, what in finished.events)


def test_the_bytes_of_the_records_are_those_that_went_over_the_wire(undisturbed):
    own = [p for p in undisturbed.log if p.client not in (AGGREGATOR,) and p.up]
    assert sum(r.bytes_up for r in undisturbed.rounds) <= sum(p.size for p in own)
    per_round = {
        r.round: sum(c.bytes_up for _, c in undisturbed.contributions if c.round == r.round)
        for r in undisturbed.rounds
    }
    assert all(0 <= r.bytes_up - per_round[r.round] < 0.02 * r.bytes_up for r in undisturbed.rounds)


def test_a_run_that_cannot_end_says_where_it_stands(mixed, members):
    with pytest.raises(SimulationError, match="nothing happens after .* s: round 0, wait, 5 devices online"):
        run_on_wire(mixed, members[:5])
    with pytest.raises(SimulationError, match=r"not done after 2\.0 s: round 1, collect, 6 devices online"):
        run_on_wire(mixed, members, WireCourse(until_s=2.0))


def test_a_fault_or_a_name_that_cannot_be_meant_is_refused(mixed, members):
    with pytest.raises(TopicError, match="device name 'a/b'"):
        run_on_wire(mixed, [replace(members[0], name="a/b")])
    with pytest.raises(ScenarioError, match="no device named 'toaster'; there are phone-a"):
        run_on_wire(mixed, members, WireCourse(faults=(Crash(1.0, device="toaster"),)))
    with pytest.raises(ScenarioError, match="from 5 s to 3 s"):
        AggregatorKilled(5, 3)
    with pytest.raises(ScenarioError, match="6 devices have only 5 names"):
        run_on_wire(mixed, [*members[:5], members[0]])


@pytest.mark.slow
def test_two_hundred_devices_go_through_the_same_wire(split, one_member):
    fleet = [replace(one_member("pi-5", 0.01), name=f"pi-{number:03d}") for number in range(200)]
    task = Task(
        bundle="digits-wrn-10-1", rounds=2, min_devices=200, kinds=(KindSettings(name="class-means"),)
    )
    finished = run_on_wire(task, fleet, WireCourse(until_s=100))
    assert [r.participants for r in finished.rounds] == [200, 200]
    assert all(r.duration_s < 1.0 for r in finished.rounds)  # virtual: they work side by side
