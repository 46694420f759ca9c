"""Strangers with names without end fill neither memory nor database, and keep nobody out who is here."""

import logging

import pytest

from aggregator.crowd import Crowd
from aggregator.observer import Contributed
from broker.messages import Plan, State


class Hall:
    def __init__(self, most):
        self.here, self.forgotten = set(), []
        self.crowd = Crowd(lambda device: device not in self.here, self.forgotten.append, most)


def test_who_is_away_and_was_heard_longest_ago_is_forgotten_for_another():
    hall = Hall(3)
    hall.here = {"a"}
    assert all(hall.crowd.lets_in(device) for device in ("a", "b", "c", "b", "d"))
    assert hall.forgotten == ["c"]
    assert len(hall.crowd) == 3


def test_while_all_are_here_nobody_else_is_let_in_and_it_is_said_ever_more_rarely(caplog):
    hall = Hall(2)
    hall.here = {"a", "b"}
    for name in ("a", "b", *(f"x{i}" for i in range(50)), "a"):
        hall.crowd.lets_in(name)
    assert len(caplog.records) == 2  # the first and the tenth
    assert "dropped, the last from x9: enrol devices" in caplog.text
    assert hall.forgotten == []
    assert hall.crowd.lets_in("b")


def test_who_is_known_from_before_is_known():
    hall = Hall(1)
    hall.here = {"a"}
    hall.crowd.remember(["a"])
    assert hall.crowd.lets_in("a")
    assert not hall.crowd.lets_in("b")


@pytest.fixture
def small(bench, make_task, monkeypatch):
    """A service that knows three devices at most."""
    monkeypatch.setattr("aggregator.service.MOST_DEVICES", 3)
    return bench(make_task("few-shot", rounds=2, min_devices=2))


def known(b):
    run = b.service._run
    return max(len(b.service.state.devices), len(run.plans), len(run.traffic.all()), len(b.service._crowd))


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
        assert known(small) <= 3
    small.wait(0.1)
    assert len(small.store.saved().present) <= 3
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
