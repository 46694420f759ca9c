"""A device whose owner's rules say no: before its work, within it, and what the aggregator hears of it."""

from itertools import pairwise

import msgspec
import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Connected
from device_runtime.broker.wire.messages import VERSION, Get, Hello, Plan, State, decode, encode
from device_runtime.device.policy.rules import Rule, RuleVerdict
from device_runtime.device.policy.work_gate import WorkGate
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.fedavg import FedAvg

YES = RuleVerdict()
FULL = registry.write(FedAvg(epochs=5, batch=20))
NO = RuleVerdict((Rule("mains", False, "on battery power"),))
SPARE = RuleVerdict((Rule("unmetered", False, "the network is metered", network=True),))


class Says:
    """Rules that a test changes; `then` they change by themselves, after so many looks."""

    def __init__(self, stage, verdict=YES):
        self.verdict, self.looks, self.then = verdict, 0, {}
        self.clock = stage.clock
        stage.agent.work_gate.judge = self
        self.states = []
        publish = stage.link.publish

        def published(topic, payload, retain=False):
            if topics.parse(topic).leaf == "state":
                state = decode(payload, State)
                assert retain
                self.states.append(state.paused)
                return True
            return publish(topic, payload, retain)

        stage.link.publish = published

    def __call__(self, _rules):
        self.looks += 1
        self.verdict = self.then.get(self.looks, self.verdict)
        return self.verdict


@pytest.fixture
def ticking(stage, monkeypatch):
    """Time passes where the device waits, and only there."""
    take = stage.agent.inbox.next

    def next_event(timeout):
        event = take(0.0)
        if event is None:
            stage.clock.now += timeout
        return event

    def begin(idle=12):
        def steps():
            left = idle
            while left:
                left -= not stage.agent.step(0.1)

        steps()

    monkeypatch.setattr(stage.agent.inbox, "next", next_event)
    stage.agent.begin(stage.link)
    return begin


def ten_steps(stage, **changes):
    """Of 40 samples, 20 a step: two an epoch."""
    return stage.offer(kinds=(FULL,), **changes)


@pytest.fixture
def steps(stage, monkeypatch):
    """Each step of training takes a second; when they ended."""
    ended, trained = [], OnnxModel.trainer

    def trainer(self, *args, **more):
        model = trained(self, *args, **more)
        inner = model.loss_and_grads

        def slow(*arguments):
            stage.clock.now += 1.0
            ended.append(stage.clock.now)
            return inner(*arguments)

        model.loss_and_grads = slow
        return model

    monkeypatch.setattr(OnnxModel, "trainer", trainer)
    return ended


def test_nothing_is_begun_while_the_rules_say_no_and_the_aggregator_is_told_why(stage, ticking):
    says = Says(stage, NO)
    stage.link.announce(stage.offer())
    ticking()
    assert stage.contributions == []
    assert says.states == [True]
    assert [(plan.round, plan.kind, plan.reasons) for plan in stage.link.of(Plan)] == [
        (1, "", ("paused: on battery power",))
    ]
    assert stage.link.of(Get) == []


def test_when_they_say_yes_again_the_round_is_worked_on_with_the_time_that_is_left(stage, ticking):
    says = Says(stage, NO)
    stage.link.announce(stage.offer())
    ticking()
    says.verdict = YES
    ticking(30)
    assert says.states == [True, False]
    assert [c.round for c in stage.contributions] == [1]
    assert stage.link.of(Hello)[-1].num_examples == 40


def test_a_round_that_has_closed_in_the_meantime_is_not_begun(stage, ticking):
    says = Says(stage, NO)
    stage.link.announce(stage.offer())
    ticking()
    stage.clock.now += 61.0
    stage.link.offer = None
    says.verdict = YES
    ticking(30)
    assert stage.contributions == []
    assert stage.link.of(Get) == []


def test_a_hello_that_is_said_while_paused_is_followed_by_the_word_that_it_is(stage, ticking):
    says = Says(stage, NO)
    ticking()
    stage.agent.inbox.put(Connected(first=False))
    ticking()
    assert says.states == [True, True]


@pytest.mark.slow
def test_work_stands_still_at_its_next_step_and_goes_on_where_it_was(stage, ticking, steps):
    """Ten steps of a second; the rules are looked at once a second: paused for three of them."""
    says = Says(stage)
    stage.link.announce(ten_steps(stage))
    go_on, done = stage.agent.runner.progressed, []

    def noted(share):
        done.append(share)
        if len(done) == 3:
            says.verdict = NO
            says.then = {says.looks + 4: YES}
        go_on(share)

    stage.agent.runner.progressed = noted
    ticking(30)
    [sent] = stage.contributions
    assert len(steps) == 10
    assert [round(after - before) for before, after in pairwise(steps)].count(1) == 8
    assert says.states == [True, False]
    assert sent.metrics.train_time_ms == pytest.approx(10_000, abs=100)  # the pause is no work
    plans = [(plan.kind, plan.reasons[:1]) for plan in stage.link.of(Plan)]
    assert plans == [("full", ()), ("", ("paused: on battery power",)), ("full", ())]


def test_work_that_stands_still_until_its_round_closes_is_given_up_with_the_reason(stage, ticking):
    says = Says(stage)
    stage.link.announce(ten_steps(stage))
    go_on = stage.agent.runner.progressed

    def noted(share):
        says.verdict = NO
        stage.agent.work_gate.look_again()
        go_on(share)

    stage.agent.runner.progressed = noted
    ticking(30)
    assert stage.contributions == []
    last = stage.link.of(Plan)[-1]
    assert last.kind == ""
    assert any("when the round closed; paused: on battery power" in reason for reason in last.reasons)
    assert stage.agent.runner.state.open is None


@pytest.mark.slow
def test_too_little_time_after_a_pause_is_stepped_down_to_what_fits(stage, ticking, steps):
    """Ten steps of a second in 30 seconds: after a pause of 25 the full update does not fit any more."""
    says = Says(stage)
    kinds = (FULL, registry.write(ClassMeans()))
    stage.link.announce(stage.offer(kinds=kinds, remaining_s=30.0))
    go_on, done = stage.agent.runner.progressed, []

    def noted(share):
        done.append(share)
        if len(done) == 2:
            says.verdict = NO
            says.then = {says.looks + 26: YES}
        go_on(share)

    stage.agent.runner.progressed = noted
    ticking(30)
    assert [c.kind for c in stage.contributions] == ["class-means"]
    assert len(steps) < 10


@pytest.mark.slow
def test_a_newer_round_that_is_heard_during_a_pause_ends_the_work_on_the_old_one(stage, ticking, caplog):
    caplog.set_level("INFO")
    says = Says(stage)
    stage.link.announce(ten_steps(stage))
    go_on = stage.agent.runner.progressed

    def noted(share):
        if not stage.contributions and says.verdict is YES and stage.link.offer.round == 1:
            says.verdict, says.then = NO, {says.looks + 5: YES}
            stage.agent.work_gate.look_again()
            stage.link.announce(ten_steps(stage, number=2))
        go_on(share)

    stage.agent.runner.progressed = noted
    ticking(100)
    assert [c.round for c in stage.contributions] == [2]
    assert "round 1 given up" in caplog.text


def test_where_the_link_is_to_be_spared_nothing_is_sent_until_it_need_not_be(stage, ticking):
    says = Says(stage)
    stage.link.receipts = False
    stage.link.announce(stage.offer())
    ticking(30)
    sent = len(stage.contributions)
    assert sent == 1
    says.verdict = SPARE
    stage.clock.now += 300.0
    ticking(30)
    assert len(stage.contributions) == sent
    says.verdict = NO  # of another reason: what waits is small, and is sent
    stage.clock.now += 300.0
    ticking(30)
    assert len(stage.contributions) == sent + 1


def test_the_clock_of_the_work_stands_still_while_it_is_held(clock):
    gate = WorkGate(clock)
    clock.now = 10.0
    with gate.on_hold():
        clock.now = 25.0
        assert (gate.work_clock(), gate.paused_s()) == (10.0, 15.0)
    clock.now = 30.0
    assert (gate.work_clock(), gate.paused_s()) == (15.0, 15.0)


def test_rules_are_looked_at_once_a_second_or_when_somebody_asks(clock):
    looks = []
    gate = WorkGate(clock, lambda rules: looks.append(rules) or NO)
    for clock.now in (0.0, 0.5, 0.9, 1.0, 1.5):
        assert not gate.open()
    assert looks == [frozenset(), frozenset({"mains"})]
    gate.look_again()
    gate.open()
    assert len(looks) == 3


def test_the_message_of_a_pause_is_read_by_those_who_do_not_know_of_it(stage):
    """An older aggregator leaves out what comes after the fields that it knows."""

    class Before(msgspec.Struct, frozen=True, array_like=True):
        v: int
        boot: int
        online: bool
        leaving: bool = False

    state = msgspec.msgpack.decode(encode(State(boot=7, online=True, paused=True)), type=Before)
    assert (state.boot, state.online, state.leaving) == (7, True, False)
    assert decode(msgspec.msgpack.encode(Before(VERSION, 7, True)), State).paused is False
