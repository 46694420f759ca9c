"""Devices and mask helpers that lie in masked rounds: who is left out, and what the others lose."""

import os

import msgspec
import numpy as np
import pytest

from device_runtime.aggregator.masking import groups
from device_runtime.aggregator.storage import sums
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.messages import Mask
from device_runtime.broker.wire.sum_messages import HelperState, SumAnswer
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.device_half import Update

KIND = "full"


def moved(b, seed, number=1):
    """A full update: its base, each value moved a little."""
    strategy = b.task.kinds[0].strategy
    rng, base = np.random.default_rng(seed), b.service.rounds.weights(number)
    manifest = b.service.rounds.tools.manifests[""]
    own = {
        spec.name: base[spec.name] + rng.normal(0, 0.01, spec.shape).astype(np.float32)
        for spec in strategy.expected(manifest)
    }
    return Update(KIND, own, 10 + seed, 0.25, strategy.variants()[0].variant)


def wrong_tag(at):
    def lie(message, _others):
        tags = list(message.mask.tags)
        tags[at] = bytes(16)
        return Mask(key=message.mask.key, tags=tuple(tags))

    return lie


LIES = {
    "a wrong tag for the first helper": wrong_tag(0),
    "a wrong tag for the second helper": wrong_tag(1),
    "a tag twice": lambda message, _: Mask(key=message.mask.key, tags=(message.mask.tags[0],) * 2),
    "tags in the wrong order": lambda message, _: Mask(key=message.mask.key, tags=message.mask.tags[::-1]),
    "another key": lambda message, _: Mask(key=os.urandom(32), tags=message.mask.tags),
    "a key that is none": lambda message, _: Mask(key=bytes(32), tags=message.mask.tags),
    "another device's mask": lambda _, others: others[0].mask,
}


class Round:
    """Plays rounds on a bench whose helpers check sums."""

    def __init__(self, b, helpers, mask_of, devices):
        self.b, self.helpers, self.mask_of, self.devices = b, helpers, mask_of, devices
        self.come()

    def come(self):
        for helper in self.helpers:
            helper.come(self.b, checks=True)
        self.b.join(*self.devices, samples=40)

    def restart(self):
        self.b = self.b.restart()
        self.come()
        self.b.wait(2)  # a restarted round does not close before presence is known

    def send(self, lies, number=1, devices=None):
        """All devices contribute; `lies` changes the message of some. Returns their receipts' statuses."""
        names = devices or self.devices
        honest = [
            self.mask_of(self.b, name, KIND, moved(self.b, at, number), number)
            for at, name in enumerate(names)
        ]
        receipts = {}
        for name, message in zip(names, honest, strict=True):
            if name in lies:
                others = [update for update, of in zip(honest, names, strict=True) if of != name]
                [receipt] = self.b.contribute(name, lies[name](self.b, message, others))
            else:
                [receipt] = self.b.contribute(name, message)
            receipts[name] = receipt
        return receipts

    def open(self):
        """Helpers check until there is nothing left to check, then answer."""
        while sum(helper.check(self.b) for helper in self.helpers):
            pass
        for helper in self.helpers:
            helper.answer(self.b)

    def record(self, number=1):
        return [(record.devices, record.why) for record in self.b.store.sums.records(number)]

    def note(self, number=1):
        return self.b.store.rounds.closed(number)[0].note


def mask(lie):
    return lambda _, message, others: msgspec.structs.replace(message, mask=lie(message, others))


def garbage(b, message, _others):
    """Random numbers in place of the masked update, with the right mask and of the right length."""
    size = message.blob.size if message.blob else len(message.body)
    sent = (os.urandom(size), message.num_examples)
    lying = b.contribution(KIND, sent, message.round, mask=message.mask)
    return msgspec.structs.replace(lying, form=message.form, metrics=message.metrics)


@pytest.fixture
def played(bench, masked_task, helpers, mask_of):
    def make(devices=4, rounds=30, **settings):
        names = tuple(f"pi-{at}" for at in range(devices))
        b = bench(masked_task(KIND, rounds=rounds, min_devices=devices, **settings))
        return Round(b, helpers, mask_of, names)

    return make


def served(b, number=1):
    return tensors.decode(b.store.models.get(b.store.rounds.made(number).served))


@pytest.mark.parametrize("name", LIES)
def test_a_device_with_a_wrong_mask_is_left_out_and_the_others_count(played, name):
    """The liar's name is the first in the order of names, and so the first of the set."""
    rounds = played()
    receipts = rounds.send({"pi-0": mask(LIES[name])})
    assert {receipt.status for receipt in receipts.values()} == {"accepted"}
    rounds.open()
    assert rounds.record() == [(3, "")]
    assert rounds.note().startswith("pi-0 is left out: mask helper helper-")
    assert rounds.b.service.state.round == 2
    for helper in rounds.helpers:
        assert sorted(helper.used[rounds.b.service.run_id, 1]) == ["pi-1", "pi-2", "pi-3"]
    assert [record.device for record in rounds.b.store.contributions.records(1)] == ["pi-1", "pi-2", "pi-3"]


def test_what_counts_without_a_liar_is_what_counts_where_it_was_never_there(played, helpers):
    lied, clean = played(), None
    lied.send({"pi-3": mask(wrong_tag(1))})
    lied.open()
    with_liar = served(lied.b)
    for helper in helpers:
        helper.answered, helper.used = {}, {}
    clean = played()
    clean.b.sit_out("pi-3", 1)
    clean.send({}, devices=clean.devices[:3])
    clean.open()
    alone = served(clean.b)
    assert all(np.allclose(with_liar[name], alone[name], atol=1e-6) for name in alone)


def test_all_but_the_smallest_group_may_lie_each_to_another_helper(played):
    rounds = played(devices=6)
    rounds.send({f"pi-{at}": mask(wrong_tag(at % 2)) for at in range(4)})
    rounds.open()
    assert rounds.record() == [(2, "")]
    assert rounds.note().count("is left out") == 4


def test_where_too_few_are_left_no_helper_uses_their_masks(played):
    rounds = played(devices=4)
    rounds.send({f"pi-{at}": mask(wrong_tag(0)) for at in range(3)})
    rounds.open()
    assert rounds.record() == [(1, "too few devices, a sum has at least 2")]
    assert all(not helper.requests(rounds.b) and not helper.used for helper in rounds.helpers)


def test_a_device_whose_masks_are_wrong_again_is_suspended_over_restarts_and_comes_back(played, monkeypatch):
    monkeypatch.setattr(sums, "SUSPENDED_ROUNDS", 2)
    rounds = played()
    for number in (1, 2, 3):
        rounds.send({"pi-1": mask(wrong_tag(0))}, number)
        rounds.open()
        rounds.restart()
    for number in (4, 5):
        receipts = rounds.send({}, number)
        assert receipts.pop("pi-1").reason == (
            "update from pi-1 refused: mask helper helper-a cannot open its mask (in round 1, 2, 3), so its "
            "updates are not taken before round 6: update the device, or join it anew"
        )
        assert {receipt.status for receipt in receipts.values()} == {"accepted"}
        rounds.open()
        assert rounds.record(number) == [(3, "")]
    rounds.send({}, 6)
    rounds.open()
    assert rounds.record(6) == [(4, "")]


def test_a_crash_while_sums_are_checked_uses_no_mask_twice(played):
    rounds = played()
    rounds.send({"pi-2": mask(wrong_tag(1))})
    rounds.helpers[0].check(rounds.b)
    rounds.restart()
    for helper in rounds.helpers:
        helper.answered = {}
    rounds.open()
    assert rounds.record() == [(3, "")]


def test_a_crash_after_a_helper_has_told_a_sum_asks_for_the_same_again(played):
    rounds = played()
    rounds.send({"pi-2": mask(wrong_tag(1))})
    while sum(helper.check(rounds.b) for helper in rounds.helpers):
        pass
    rounds.helpers[0].answer(rounds.b)
    rounds.restart()
    assert not rounds.helpers[1].checks(rounds.b)
    for helper in rounds.helpers:
        helper.answered = {}
        helper.answer(rounds.b)
    assert rounds.record() == [(3, "")]


def test_a_helper_that_can_open_no_mask_is_at_fault_itself(played):
    rounds = played()
    rounds.helpers[1].secret = b"9" * 32
    rounds.send({})
    rounds.open()
    [(devices, why)] = rounds.record()
    assert devices == 4
    assert why == ("mask helper helper-b refused it: it cannot open 4 of 4 masks, as if its key had changed")
    assert rounds.b.store.sums.faults.left_out(1) == ()
    assert all(not helper.used for helper in rounds.helpers)


def test_devices_that_a_helper_has_summed_before_are_left_out_without_a_fault(played):
    rounds = played()
    rounds.helpers[0].used[rounds.b.service.run_id, 1] = {"pi-0": b"other"}
    rounds.send({})
    rounds.open()
    assert rounds.record() == [(3, "")]
    assert rounds.note() == "pi-0 is left out: mask helper helper-a has summed its mask in another set"
    assert rounds.b.store.sums.faults.suspension("pi-0", 2) == ""


def test_a_helper_that_does_not_check_is_asked_for_sums_at_once(played):
    rounds = played()
    for helper in rounds.helpers:
        helper.come(rounds.b, checks=False)
    rounds.send({})
    assert [len(helper.requests(rounds.b)) for helper in rounds.helpers] == [1, 1]
    for helper in rounds.helpers:
        helper.answer(rounds.b)
    assert rounds.record() == [(4, "")]


def test_the_presence_of_a_helper_that_leaves_is_cleared_and_that_of_one_that_is_lost_is_not(played):
    rounds = played()
    topic = topics.up("helper-a", "state")
    rounds.b.say("helper-a", "state", HelperState(boot=1, online=False))
    assert topic not in [where for where, _ in rounds.b.link.sent]
    rounds.b.say("helper-a", "state", HelperState(boot=1, online=False, leaving=True))
    assert rounds.b.link.sent[-1] == (topic, b"")


def test_a_helper_that_never_answers_checks_ends_the_run_with_a_sentence(played):
    rounds = played(max_extensions=2)
    rounds.send({})
    rounds.helpers[0].check(rounds.b)
    rounds.b.wait(10)
    rounds.b.wait(10)
    assert rounds.b.service.finished
    assert "brought no answer of mask helper helper-b" in rounds.b.service._run.commands.gave_up
    rounds.restart()
    for helper in rounds.helpers:
        helper.answered = {}
    rounds.open()
    assert rounds.record() == [(4, "")]


def test_an_answer_to_a_check_opens_nothing_and_one_of_somebody_else_changes_nothing(played):
    rounds = played()
    rounds.send({})
    [request] = rounds.helpers[0].checks(rounds.b)
    rounds.b.say("pi-1", "sum", SumAnswer(id=request.id, refusal="no", invalid=("pi-0",), checked=True))
    rounds.b.say("helper-a", "sum", SumAnswer(id=request.id, body=b"x"))
    unknown = SumAnswer(id=request.id, refusal="no", invalid=("pi-77",), checked=True)
    rounds.b.say("helper-a", "sum", unknown)
    rounds.helpers[0].answered["check", request.id] = unknown
    rounds.open()
    assert rounds.record() == [(4, "")]
    assert rounds.b.store.sums.faults.left_out(1) == ()


def test_a_device_that_sends_wrong_numbers_under_a_right_mask_is_found_by_what_spoilt_sums_share(
    played,
):
    """Six devices are three sums of two: the liar is in a spoilt one each time, others by chance."""
    rounds = played(devices=6)
    spoilt = 0
    for number in range(1, 12):
        receipts = rounds.send({"pi-4": garbage}, number)
        if receipts["pi-4"].status == "refused":
            break
        rounds.open()
        spoilt += sum(bool(why) for _, why in rounds.record(number))
        rounds.restart()
    assert receipts["pi-4"].reason.startswith("update from pi-4 refused: ")
    assert "sums that cannot be had its updates in common" in receipts["pi-4"].reason
    assert {receipt.status for name, receipt in receipts.items() if name != "pi-4"} == {"accepted"}
    assert 3 <= number <= 8
    assert spoilt == number - 1
    rounds.open()
    assert rounds.record(number) == [(5, "")]


@pytest.mark.parametrize(
    "before, named",
    [
        ({}, ()),
        ({"a": 2}, ("a",)),
        ({"a": 2, "b": 1}, ()),
        ({"a": 3, "b": 1}, ("a",)),
        ({"a": 2, "b": 2, "c": 2}, ()),
    ],
)
def test_a_device_is_named_when_it_was_in_more_spoilt_sums_than_all_others(before, named):
    class Of:
        def __init__(self, device):
            self.device = device

    faults = groups.faults_of([Of(name) for name in "abc"], b"sum", "why", before)
    assert tuple(fault.device for fault in faults if fault.fault == "named") == named
    assert len(faults) == (1 if named else 3)
