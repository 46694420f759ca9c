"""The device's machine by itself: when it says hello, sends, sends again, trains and ends a round."""

import msgspec
import pytest

from device_runtime.device.machine import events as ev
from device_runtime.device.machine.offer_rules import ANOTHER_S, FINAL_S, TASKS
from device_runtime.device.machine.state import DeviceRules, DeviceState
from device_runtime.device.machine.step import step


class Device:
    """A machine, the commands of its last step, and all that it has commanded."""

    def __init__(self, **state):
        self.state, self.commands, self.all = DeviceState(**state), (), []

    def feed(self, event):
        self.state, self.commands = step(self.state, event)
        self.all += self.commands
        return self.commands

    def of(self, kind):
        return [command for command in self.all if isinstance(command, kind)]

    def keep(self, seq=1, now=0.0, **changes):
        """A contribution to the round of the same number is on disk."""
        return self.feed(ev.Kept(now, msgspec.structs.replace(waiting(seq), **changes)))

    def prepare(self, number=1, now=0.0):
        """Nothing is missing for the open round: prepare it."""
        self.feed(ev.Tick(now))
        self.feed(ev.Previewed(now, number, ()))
        return self.feed(ev.Prepared(now, number))


def waiting(seq, **changes):
    return msgspec.structs.replace(ev.WaitingContribution(seq, "t", "r", seq, 4), **changes)


def offered(number=1, **changes):
    usual = {"number": number, "task": "t", "run": "r", "round": number, "closes": 60.0, "bundles": "x"}
    return ev.Offered(**{**usual, **changes})


def offer_heard(number=1, now=0.0, to_all=True, retained=False, over=False, **changes):
    return ev.OfferReceived(now, offered(number, **changes), to_all, retained, over)


def moments(device, kind, until_s, flight=lambda _: ev.MessagesInFlight()):
    """Seconds at which something of this kind is commanded, of a tick at each."""
    return [
        now
        for now in range(until_s)
        for command in device.feed(ev.Tick(float(now), flight(now)))
        if isinstance(command, kind)
    ]


def test_a_hello_without_an_answer_is_repeated_after_waits_that_double_up_to_a_minute():
    device = Device()
    device.feed(ev.LinkUp(0.0))
    assert moments(device, ev.SayHello, 200) == [10, 30, 70, 130, 190]


def test_a_withdrawn_task_is_neither_asked_for_nor_sent_to_until_it_is_offered_again():
    device = Device(bundles="x")
    device.feed(ev.LinkUp(0.0))
    device.feed(offer_heard(1, to_all=False))
    device.keep(1)
    device.feed(ev.LinkUp(0.0))
    device.feed(ev.OfferWithdrawn(0.0, "t"))
    assert moments(device, (ev.SayHello, ev.Send), 300) == []
    device.feed(offer_heard(1, now=300.0))
    assert ev.SayHello in map(type, device.commands)
    assert ev.Send in map(type, device.feed(ev.Tick(301.0)))


def test_a_device_that_waits_for_an_answer_asks_no_more_for_a_withdrawn_task_until_the_link_is_new():
    device = Device()
    device.feed(ev.LinkUp(0.0))
    device.feed(ev.OfferWithdrawn(1.0, ""))
    assert moments(device, ev.SayHello, 300) == []
    assert ev.SayHello in map(type, device.feed(ev.LinkUp(300.0)))


def test_a_device_of_any_task_goes_on_to_another_one_when_its_own_is_withdrawn():
    device = Device()
    device.feed(ev.LinkUp(0.0))
    device.feed(offer_heard(1, to_all=False))
    device.feed(offer_heard(1, now=1.0, task="u"))
    device.feed(ev.OfferWithdrawn(2.0, "t"))
    assert [command.task for command in device.of(ev.JoinTask)] == ["u"]
    assert (device.state.task, device.state.withdrawn) == ("u", False)


def test_that_another_task_is_withdrawn_is_only_noted():
    device = Device()
    device.feed(ev.LinkUp(0.0))
    device.feed(offer_heard(1, to_all=False))
    device.feed(offer_heard(1, now=1.0, task="u"))
    device.feed(ev.OfferWithdrawn(2.0, "u"))
    assert (device.state.task, device.state.others, device.state.withdrawn) == ("t", (), False)


def test_no_hello_is_repeated_once_there_is_an_answer_or_before_any_was_said():
    device = Device()
    assert moments(device, ev.SayHello, 100) == []
    device.feed(ev.LinkUp(0.0))
    assert moments(device, ev.SayHello, 12) == [10]
    device.feed(offer_heard(0, to_all=False, round=0, done=True))
    assert moments(device, ev.SayHello, 100) == []
    device.feed(ev.LinkUp(0.0))
    assert moments(device, ev.SayHello, 12) == [10]  # waits are short again


def test_a_hello_that_is_still_on_its_way_to_the_broker_is_not_repeated():
    device = Device()
    device.feed(ev.LinkUp(0.0))
    slow = lambda now: ev.MessagesInFlight(1, 1, 0) if now < 50 else ev.MessagesInFlight()  # noqa: E731
    assert moments(device, ev.SayHello, 100, slow) == [59, 79]


def test_a_contribution_without_a_receipt_is_sent_again_after_waits_that_double_up_to_a_minute():
    device = Device()
    assert device.keep(samples=0) == (ev.Send(1, first=True),)
    assert moments(device, ev.Send, 200) == [10, 31, 72, 133, 194]


def test_while_anything_is_on_its_way_to_the_broker_nothing_is_sent_again():
    device = Device()
    device.keep(samples=0)
    slow = lambda now: ev.MessagesInFlight(1, 0, 0) if now < 300 else ev.MessagesInFlight()  # noqa: E731
    assert moments(device, ev.Send, 320, slow) == [310]


def test_a_contribution_is_sent_again_between_the_messages_of_quick_rounds():
    device = Device()
    device.keep(samples=0)
    busy = lambda now: ev.MessagesInFlight(now % 2, 0, 0)  # noqa: E731
    assert moments(device, ev.Send, 60, busy) == [10, 32]


def test_after_a_lost_link_what_the_broker_had_goes_again_and_the_link_brings_the_rest():
    device = Device()
    device.keep(1, samples=0)
    device.keep(2, 1.0, samples=0)
    device.feed(ev.LinkUp(1.0, ev.MessagesInFlight(1, 0, 1)))  # round 2's is on its way
    assert device.feed(ev.Tick(1.0)) == (ev.Send(1, first=True),)
    device.feed(ev.LinkUp(1.0, ev.MessagesInFlight(2, 0, 2)))
    assert device.feed(ev.Tick(1.0)) == ()


def test_after_a_lost_link_waits_are_short_again():
    device = Device(task="t", samples=9)
    device.keep()
    moments(device, ev.Send, 71)
    device.feed(ev.LinkUp(0.0))
    device.feed(offer_heard(0, to_all=False, round=0))
    assert moments(device, ev.Send, 40) == [0, 11, 32]


def test_a_short_contribution_goes_again_at_once_after_a_lost_link():
    device = Device()
    device.keep(samples=0)
    device.feed(ev.Sent(0.0, 1, compact=True))
    device.feed(ev.LinkUp(1.0, ev.MessagesInFlight(1, 0, 1)))  # something that went whole is on its way
    assert device.feed(ev.Tick(1.0)) == (ev.Send(1, first=True),)


def test_what_is_put_off_goes_again_when_the_aggregator_said_and_is_not_settled():
    device = Device()
    device.keep(samples=0)
    assert device.feed(ev.ReceiptReceived(5.0, 1, counts=False, retry_s=100.0)) == ()
    assert device.feed(ev.Tick(104.0)) == ()
    assert device.feed(ev.Tick(105.0)) == (ev.Send(1, first=False),)
    assert len(device.state.outbox) == 1


def test_a_receipt_settles_its_contribution_and_a_second_one_nothing():
    device = Device()
    device.keep(samples=0)
    assert device.feed(ev.ReceiptReceived(5.0, 1, counts=True)) == (ev.Settle(1, True, 0.0),)
    assert device.feed(ev.Settled(5.0, 1, counts=True)) == (ev.RoundEnded("r", 1, "accepted"),)
    assert device.state.has_answered("r", 1)
    assert device.feed(ev.ReceiptReceived(6.0, 1, counts=True)) == ()


def test_the_next_round_ends_the_wait_for_compact_contributions_alone():
    device = Device(task="t", samples=9)
    for seq in (1, 2):
        device.keep(seq)
    device.feed(ev.Sent(0.0, 2, compact=True))
    device.feed(offer_heard(2, over=True))
    assert [entry.seq for entry in device.state.outbox] == [1, 2]
    device.feed(offer_heard(3, over=True))
    assert [entry.seq for entry in device.state.outbox] == [1]
    assert device.of(ev.RoundEnded) == [ev.RoundEnded("r", 2, "round over")]


def test_a_contribution_of_more_samples_than_the_hello_said_is_sent_after_a_new_hello():
    device = Device(task="t", bundles="x")
    device.feed(ev.HelloSaid(0.0, 3))
    assert device.keep() == (ev.SayHello(4), ev.Send(1, first=True))


def test_a_round_is_previewed_fetched_prepared_and_trained_for_and_its_contribution_sent():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    assert device.feed(ev.Tick(0.0)) == (ev.Preview(1),)
    assert device.feed(ev.Previewed(0.0, 1, ("b",))) == (ev.Fetch(1, ("b",)),)
    assert device.state.phase == "fetching"
    assert device.feed(ev.Tick(1.0)) == (ev.Fetch(1, ("b",)),)
    device.feed(ev.BlobArrived(2.0, "b"))
    assert device.feed(ev.Tick(2.0)) == (ev.Preview(1),)
    assert device.feed(ev.Previewed(2.0, 1, ())) == (ev.Prepare(1),)
    assert device.state.phase == "ready"
    assert device.feed(ev.Prepared(2.0, 1)) == (ev.Prune(1), ev.Train(1))
    assert device.state.phase == "training"
    assert device.feed(ev.PlanMade(2.0, "t", 1)) == (ev.SendPlan(),)
    assert device.feed(ev.Made(3.0, "r", 1, "contribution")) == (ev.Keep("r", 1),)
    assert device.keep(now=3.0) == (ev.Send(1, first=True),)
    device.feed(ev.Trained(3.0, 1))
    assert device.state.phase == "awaiting_receipt"
    device.feed(ev.Settled(4.0, 1, counts=True))
    assert device.feed(ev.Tick(4.0)) == (ev.Evaluate(1),)
    assert device.state.phase == "evaluating"
    device.feed(ev.Evaluated(5.0, 1, 1.0))
    assert device.state.phase == "idle"


def test_a_round_is_evaluated_during_the_next_one_only_if_that_takes_a_small_share_of_it():
    for closes, seconds, expected in (
        (20.0, 1.0, ev.Preview(2)),
        (21.0, 1.0, ev.Evaluate(1)),
        (600.0, None, ev.Preview(2)),
    ):
        device = Device(task="t", worked_on=offered(), evaluate_s=seconds)
        device.feed(offer_heard(2, closes=closes))
        assert device.feed(ev.Tick(0.0)) == (expected,)


@pytest.mark.parametrize("fetched", [False, True])
def test_a_round_is_evaluated_once_nothing_is_to_be_fetched_from_the_device(fetched):
    entry = waiting(1, fetched=fetched, first_s=0.0, carried_s=0.0)
    device = Device(task="t", worked_on=offered(), outbox=(entry,))
    assert device.feed(ev.Tick(0.0)) == (() if fetched else (ev.Evaluate(1),))


def test_training_is_held_when_the_device_is_paused_and_cancelled_when_a_newer_offer_comes():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    device.prepare()
    assert device.feed(ev.WorkGateChanged(1.0, allows=False)) == (
        ev.SayPaused(True), ev.SendSatOut("t", 1), ev.Hold(),
    )  # fmt: skip
    assert device.feed(offer_heard(2, 2.0)) == (ev.Cancel(1, "given up"),)
    assert device.feed(ev.WorkFailed(2.0, 1, "stopped")) == (ev.RoundEnded("r", 1, "given up"),)
    assert device.state.open == offered(2)


def test_training_is_cancelled_when_its_round_closes_during_a_pause():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    device.prepare()
    device.feed(ev.WorkGateChanged(1.0, allows=False))
    assert device.feed(ev.Tick(59.0)) == ()
    assert device.feed(ev.Tick(60.0)) == (ev.Cancel(1, "closed"),)
    assert device.feed(ev.Tick(61.0)) == ()


def test_a_round_that_closes_as_a_pause_ends_is_not_begun():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    device.feed(ev.WorkGateChanged(1.0, allows=False))
    ended = (ev.SayPaused(False), ev.RoundEnded("r", 1, "closed"), ev.SayHello(0))
    assert device.feed(ev.WorkGateChanged(60.0, allows=True)) == ended


def test_training_goes_on_while_no_other_round_is_open_and_its_task_is_not_done():
    device = Device(task="t", training=offered())
    assert ev.Cancel not in map(type, device.feed(ev.LinkUp(1.0)))


def test_answers_about_other_work_do_not_end_the_training():
    device = Device(task="t", training=offered(1))
    for event in (ev.Trained(1.0, 2), ev.TrainingGoesOn(1.0, 2), ev.WorkFailed(1.0, 2, "blob")):
        assert device.feed(event) == ()
        assert device.state.training == offered(1)
    device = Device(task="t")
    assert device.feed(ev.Trained(1.0, 1)) == ()


@pytest.mark.parametrize(
    ("cancelled", "why", "reason"),
    [("", "left out", "left out"), ("given up", "stopped", "given up"), ("", "blob", "superseded")],
)
def test_training_that_fails_after_a_newer_offer_has_come_ends_its_round(cancelled, why, reason):
    device = Device(task="t", training=offered(1), cancelled=cancelled, open=offered(2))
    assert device.feed(ev.WorkFailed(1.0, 1, why)) == (ev.RoundEnded("r", 1, reason),)
    assert (device.state.training, device.state.open) == (None, offered(2))


def test_training_goes_on_when_a_newer_offer_comes_and_is_cancelled_when_its_task_is_done():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    device.prepare()
    assert device.feed(offer_heard(2)) == ()
    assert ev.Cancel(1, "task done") in device.feed(offer_heard(3, done=True))


def test_a_plan_whose_worker_died_during_a_pause_is_not_told_after_it():
    for died, last in ((False, ev.SendPlan()), (True, ev.SayHello(0))):
        device = Device(task="t", samples=9)
        device.feed(offer_heard())
        device.prepare()
        device.feed(ev.PlanMade(1.0, "t", 1))
        device.feed(ev.WorkGateChanged(2.0, allows=False))
        if died:
            device.feed(ev.WorkerDied(3.0))
        assert device.feed(ev.WorkGateChanged(4.0, allows=True))[-1] == last


def test_training_in_the_background_is_asked_for_again_and_ended_by_a_newer_offer():
    device = Device(task="t", samples=9)
    device.feed(offer_heard())
    device.prepare()
    device.feed(ev.TrainingGoesOn(1.0, 1))
    assert device.state.phase == "training"
    assert device.feed(ev.Tick(1.0)) == (ev.Prepare(1),)
    assert device.feed(ev.Prepared(1.0, 1)) == (ev.Train(1),)
    device.feed(ev.TrainingGoesOn(1.0, 1))
    assert device.feed(offer_heard(2, 2.0)) == (ev.RoundEnded("r", 1, "superseded"),)


def test_a_base_on_its_way_goes_on_while_its_round_has_time_and_the_newest_is_next():
    device = Device(task="t", samples=9)
    for number, now in ((1, 0.0), (2, 5.0), (3, 6.0)):
        device.feed(offer_heard(number, now))
        device.feed(ev.Tick(now))
        device.feed(ev.Previewed(now, 1, ("b",)))
    assert (device.state.open.number, device.state.newest.number) == (1, 3)
    assert device.of(ev.RoundEnded) == [ev.RoundEnded("r", 2, "superseded")]
    device.feed(offer_heard(4, 59.0))  # round 1 has a second left
    assert (device.state.open.number, device.state.newest) == (4, None)


@pytest.mark.parametrize(
    ("why", "whole", "commands"),
    [
        ("blob", True, ()),
        ("worker died", True, ()),
        ("no room", True, (ev.Prune(1),)),
        ("stale base", True, ()),
        ("stale base", False, (ev.RoundEnded("r", 1, "stale base"), ev.SayHello(0))),
        ("left out", True, (ev.RoundEnded("r", 1, "left out"),)),
    ],
)
def test_work_that_fails_is_tried_again_unless_its_round_cannot_be_worked_on(why, whole, commands):
    device = Device(task="t")
    device.feed(offer_heard())
    device.feed(ev.Tick(0.0))
    assert device.feed(ev.WorkFailed(0.0, 1, why, whole)) == commands
    again = () if commands[:1] and isinstance(commands[0], ev.RoundEnded) else (ev.Preview(1),)
    assert device.feed(ev.Tick(1.0)) == again


def test_work_on_the_model_of_a_task_that_is_done_may_fail_until_its_time_is_over():
    """A worker that died after the last offer is no fault of a round that is open no longer."""
    device = Device(rules=DeviceRules(keeps=True), task="t", bundles="x")
    assert device.feed(offer_heard(1, done=True)) == (ev.TaskDone("t", 1), ev.FetchAhead(1))
    assert device.feed(ev.Tick(1.0)) == (ev.Preview(1),)
    device.feed(ev.WorkFailed(1.0, 1, "worker died"))
    assert device.feed(ev.Tick(2.0)) == (ev.Preview(1),)
    assert device.feed(ev.Previewed(FINAL_S, 1, ("b",))) == (ev.FinalModelMissed(1),)
    assert device.feed(ev.Tick(FINAL_S)) == ()


@pytest.mark.parametrize(
    ("event", "over"),
    [
        (ev.WorkFailed(1.0, 1, "blob"), False),
        (ev.WorkFailed(1.0, 1, "left out"), True),
        (ev.WorkFailed(1.0, 1, "stopped"), True),
        (ev.WorkFailed(FINAL_S, 1, "blob"), True),
        (ev.WorkFailed(1.0, 2, "left out"), False),
        (ev.FetchRefused(1.0, 1), True),
        (ev.FetchRefused(1.0, 2), False),
        (ev.Evaluated(1.0, 1), True),
        (ev.Evaluated(1.0, 2), False),
    ],
)
def test_when_a_final_model_is_kept_or_cannot_be_had_the_round_before_is_not_evaluated_any_more(event, over):
    device = Device(task="t", done=True, final=offered(1), final_s=FINAL_S, worked_on=offered(1))
    device.feed(event)
    assert device.feed(ev.Tick(event.now)) == (() if over else (ev.Preview(1),))


def test_a_failure_of_a_round_that_is_open_no_longer_changes_nothing():
    device = Device(task="t")
    device.feed(offer_heard())
    device.feed(offer_heard(1, done=True))
    before = device.state
    assert device.feed(ev.WorkFailed(1.0, 1, "worker died")) == ()
    assert device.state == before


def test_only_the_other_tasks_heard_of_last_are_remembered():
    device = Device(task="mine")
    for number in range(TASKS + 1):
        device.feed(offer_heard(1, task=f"task-{number}"))
    assert device.state.others == tuple(f"task-{number}" for number in range(1, TASKS + 1))
    device.feed(offer_heard(1, task="task-7", done=True))
    assert "task-7" not in device.state.others


def test_a_task_that_was_done_before_the_device_came_is_believed_when_no_other_comes_in_time():
    device = Device()
    device.feed(offer_heard(retained=True, done=True))
    device.feed(ev.Tick(ANOTHER_S - 0.1))
    assert not device.state.done
    device.feed(ev.Tick(ANOTHER_S))
    assert device.state.done
