"""Strangers with names without end fill neither memory nor database, and keep nobody out who is here."""

import logging

import pytest

from device_runtime.aggregator.limits import KnownDevices
from device_runtime.aggregator.machine.run_events import Contributed
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import Hello, Plan, State, encode

DATABASES = ("sqlite", "postgres")


class Hall:
    def __init__(self, most):
        self.here, self.forgotten = set(), []
        self.devices = KnownDevices(lambda device: device not in self.here, self.forgotten.append, most)


def test_who_is_away_and_was_heard_longest_ago_is_forgotten_for_another():
    hall = Hall(3)
    hall.here = {"a"}
    assert all(hall.devices.lets_in(device) for device in ("a", "b", "c", "b", "d"))
    assert hall.forgotten == ["c"]
    assert len(hall.devices) == 3


def test_while_all_are_here_nobody_else_is_let_in_and_it_is_said_ever_more_rarely(caplog):
    hall = Hall(2)
    hall.here = {"a", "b"}
    for name in ("a", "b", *(f"x{i}" for i in range(50)), "a"):
        hall.devices.lets_in(name)
    assert len(caplog.records) == 2  # the first and the tenth
    assert "the last was from x9: enrol devices" in caplog.text
    assert hall.forgotten == []
    assert hall.devices.lets_in("b")


def test_who_is_known_from_before_is_known():
    hall = Hall(1)
    hall.here = {"a"}
    hall.devices.remember(["a"])
    assert hall.devices.lets_in("a")
    assert not hall.devices.lets_in("b")


@pytest.fixture
def small(bench, make_task):
    """A service that knows three devices at most."""
    return bench(make_task("few-shot", rounds=2, min_devices=2), max_devices=3)


def count_of(b):
    plans, moved = b.service._run.contributions.statements.plans, b.service._out.traffic.all()
    return max(
        len(b.service.state.devices), len(plans), len(moved), len(b.service._messages.admission.known_devices)
    )


def test_strangers_of_many_names_leave_the_service_no_larger_and_the_round_goes_on(small, update_of):
    small.join("pi-1", "pi-2")
    for number in range(40):
        name = f"stranger-{number}"
        small.say(name, "state", State(boot=1, online=True))
        plan = Plan(
            task=small.task.name, round=1, kind="", seconds=0, memory_bytes=0, energy_j=0, reasons=("no",)
        )
        small.say(name, "plan", plan)
        small.contribute(
            name, small.contribution("few-shot", update_of("few-shot"), seq=number + 1, task="x")
        )
        small.say(name, "state", State(boot=1, online=False, leaving=True))
        assert count_of(small) <= 3
    small.wait(0.1)
    assert len(small.store.session.saved().present) <= 3
    for name in ("pi-1", "pi-2"):
        assert (
            small.contribute(name, small.contribution("few-shot", update_of("few-shot")))[0].status
            == "accepted"
        )
    assert len(small.heard(Contributed)) == 2
    assert small.service.state.round == 2


def test_strangers_that_stay_are_not_let_in_where_there_is_no_room(small, update_of, caplog):
    small.join("pi-1", "pi-2", "pi-3")
    with caplog.at_level(logging.WARNING):
        small.join("stranger")
    assert "stranger" not in small.service.state.devices
    assert "enrol devices to keep strangers out" in caplog.text
    small.say("pi-3", "state", State(boot=1, online=False, leaving=True))
    small.join("pi-4")
    assert set(small.service.state.devices) == {"pi-1", "pi-2", "pi-4"}


def test_a_restarted_service_knows_who_was_here(small):
    small.join("pi-1", "pi-2", "pi-3")
    small.wait(0.1)
    small.restart()
    small.join("pi-4")
    assert "pi-4" not in small.service.state.devices


def visit(b, name, update_of=None, number=1):
    """One that comes, sends what it has, and leaves; the receipts that came of it."""
    b.join(name)
    message = b.contribution("few-shot", update_of("few-shot"), number) if update_of else None
    receipts = b.contribute(name, message) if message else []
    b.say(name, "state", State(boot=1, online=False, leaving=True))
    return receipts


@pytest.mark.parametrize("late", ["count", "discard"])
def test_a_round_takes_so_many_valid_updates_of_strangers_and_tells_the_others_when_to_come_again(
    bench, make_task, update_of, caplog, late
):
    b = bench(make_task("few-shot", rounds=3, min_devices=2, late=late), max_devices=4)
    b.join("pi-1", "pi-2")
    answers = [visit(b, f"stranger-{number}", update_of)[0] for number in range(30)]
    assert [answer.status for answer in answers] == ["accepted"] * 4 + ["refused"] * 26
    assert {(answer.reason.split(": ")[1], answer.retry_after_s) for answer in answers[4:]} == {
        ("round 1 has 4 contributions, as many as it takes", 10)
    }
    assert caplog.text.count("round 1 takes 4 contributions, later ones are deferred: raise max_devices") == 1
    b.wait(3.5)
    [receipt] = b.contribute("pi-1", b.contribution("few-shot", update_of("few-shot")))
    assert (receipt.status, receipt.retry_after_s) == ("refused", 7)
    b.wait(6.5)
    assert b.service.state.round == 2
    assert len(list(b.store.contributions.of_round(1))) == 4
    assert len(b.store.contributions.traffic(1)) <= 8
    b.join("pi-1")
    [receipt] = b.contribute("pi-1", b.contribution("few-shot", update_of("few-shot")))
    assert receipt.status == {"count": "accepted", "discard": "late"}[late]


def cohort_in(b):
    return set(b.store.session.saved().asked)


def test_strangers_that_are_asked_and_leave_fill_no_table(bench, make_task):
    """Of a buffered run each that leaves makes room for another to be asked."""
    b = bench(make_task("few-shot", devices_per_round=2, buffer_size=2, min_devices=1), max_devices=5)
    for number in range(40):
        visit(b, f"stranger-{number}")
        b.wait(1.5)
    assert b.service.state.round == 1
    assert set(b.service.state.asked) == cohort_in(b) == {f"stranger-{number}" for number in range(35, 40)}
    b.restart()
    for number in range(40, 60):
        visit(b, f"stranger-{number}")
        b.wait(1.5)
    assert set(b.service.state.asked) == cohort_in(b) == {f"stranger-{number}" for number in range(55, 60)}


def test_who_was_asked_for_rounds_that_do_not_matter_any_more_is_not_on_the_disk(bench, make_task, update_of):
    b = bench(
        make_task("few-shot", devices_per_round=1, min_devices=9, rounds=9, late="count", max_staleness=2)
    )
    b.join(*(f"pi-{number}" for number in range(9)))
    cohorts = []
    for number in range(1, 9):
        [name] = (device for device, latest in b.service.state.asked.items() if latest == number)
        cohorts.append(name)
        message = b.contribution("few-shot", update_of("few-shot"), number)
        assert b.contribute(name, message)[0].status == "accepted"
    [name] = (device for device, latest in b.service.state.asked.items() if latest == 9)
    assert cohort_in(b) == {*cohorts[-2:], name}


def test_one_that_is_forgotten_and_asked_again_at_once_is_known_to_be_asked(bench, make_task):
    b = bench(make_task("few-shot", devices_per_round=3))
    b.join("pi-1")
    b.service._messages.forget("pi-1")
    hello = Hello(boot=1, num_examples=20, profile="pi", memory_bytes=2**29, engine="onnx")
    b.service.handle(Received(topics.up("pi-1", "hello"), encode(hello), False))
    b.service.tick()
    assert cohort_in(b) == {"pi-1"}
    b.service._messages.forget("pi-1")
    b.service.tick()
    assert cohort_in(b) == set()
