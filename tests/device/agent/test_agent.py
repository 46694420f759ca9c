"""The device's main loop against a scripted link: no sockets, and a clock that stands still."""

import threading
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Connected, Received
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    Get,
    Hello,
    Plan,
    State,
    Stretch,
    decode,
    encode,
)
from device_runtime.broker.wire.topics import parse
from device_runtime.device.agent.agent import Agent
from device_runtime.device.errors import OutOfMemory
from device_runtime.device.machine.events import RESEND_S
from device_runtime.device.training.local_task import Settings
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles import Speed, shipped
from device_runtime.profiles.device import Emulation, Time
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import class_statistics


def test_a_device_fetches_trains_and_sends_once(stage):
    stage.link.announce(stage.offer())
    stage.go()
    assert [(c.round, c.kind, c.num_examples) for c in stage.contributions] == [(1, "class-means", 40)]
    stage.link.announce(stage.offer())  # heard again: an aggregator that restarted
    stage.go()
    assert len(stage.contributions) == 1


def test_a_device_hears_that_its_task_is_not_offered_any_more(stage, caplog):
    stage.link.announce(stage.offer())
    stage.go()
    stage.agent.inbox.put(Received(topics.offer("t"), b"", retain=False))
    stage.go()
    assert stage.agent.runner.state.withdrawn
    assert "task 't' is not offered any more: it is over or was given up. Waiting for an offer" in caplog.text
    assert "ignored" not in caplog.text


def test_a_device_whose_broker_has_no_offer_stops_asking_after_a_while(stage, caplog):
    stage.agent.inbox.put(Connected(first=True))
    for _ in range(100):
        stage.clock.now += 10.0
        stage.go()
    assert len(stage.link.of(Hello)) <= 4
    assert "no task is offered at the broker. Waiting for an offer" in caplog.text


def test_a_device_whose_folder_is_empty_sits_out_until_there_are_samples(stage, caplog):
    (stage.folder / "a.npz").rename(stage.folder / "samples.npz")
    (stage.folder / "a.npz").mkdir()
    for number in (1, 2):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert stage.contributions == []
    assert "round 1 left out: no samples in" in caplog.text
    assert "round 2 left out" not in caplog.text  # for the same reason
    (stage.folder / "samples.npz").rename(stage.folder / "a.npz" / "samples.npz")
    stage.link.announce(stage.offer(3))
    stage.go()
    assert [contribution.round for contribution in stage.contributions] == [3]


def test_a_device_sends_the_classes_that_the_offer_says_are_rare(stage):
    kind = registry.make("class-means", {"statistics": {"most_classes": 2, "moments": False}})
    for number, rare in ((1, (7, 3)), (2, (7,)), (3, ())):
        stage.link.announce(stage.offer(number, kinds=(registry.write(kind),), rare=rare, run=f"r{number}"))
        stage.go()
    sent = [tensors.decode(contribution.body)[class_statistics.ROWS] for contribution in stage.contributions]
    assert [rows[:, 0].tolist() for rows in sent] == [[3, 7], [2, 7], [6, 7]]


@pytest.mark.slow
def test_an_offer_of_another_bundle_is_worked_on_with_that_bundle(stage, another):
    stage.link.announce(stage.offer(1))
    stage.go()
    stage.link.announce(stage.offer(1, another, run="s"))
    stage.go()
    assert [c.run for c in stage.contributions] == ["r", "s"]
    assert stage.agent.runner.backend.task.manifest.name == "another"


@pytest.fixture
def slow_at_first(stage, monkeypatch):
    """A device that is found to be a million times too slow, and then as it is; the load stays as it was."""
    speeds = [Speed(1e3, source="set"), Speed(1e9, source="set")]
    monkeypatch.setattr("device_runtime.device.training.local_task.device_speed", lambda *_: speeds.pop(0))
    monkeypatch.setattr("device_runtime.device.training.local_task.load_per_core", lambda: 1.0)
    return stage


@pytest.mark.slow
def test_a_device_that_sat_out_two_rounds_measures_anew_in_the_third_and_takes_part_in_it(slow_at_first):
    stage = slow_at_first
    for number in (1, 2, 3):
        assert stage.contributions == []
        stage.link.announce(stage.offer(number))
        stage.go()
    assert [plan.kind for plan in stage.link.of(Plan)] == ["", "", "", "class-means"]
    assert [contribution.round for contribution in stage.contributions] == [3]


@pytest.mark.slow
def test_a_device_that_sits_out_measures_anew_in_a_round_that_is_extended_also_after_a_restart(slow_at_first):
    stage = slow_at_first
    for extensions in range(3):
        assert stage.contributions == []
        stage.link.announce(stage.offer(1))
        stage.go()
        stage.clock.now += 60.0
        if extensions == 1:
            stage.agent.close()
            stage.start(boot=2)
    assert [contribution.round for contribution in stage.contributions] == [1]


@pytest.mark.slow
def test_a_device_that_is_really_too_slow_measures_anew_in_every_third_round(slow_at_first, monkeypatch):
    stage, measured_in = slow_at_first, []
    monkeypatch.setattr(
        "device_runtime.device.training.local_task.device_speed",
        lambda *_: measured_in.append(number) or Speed(1e3, source="set"),
    )
    for number in range(1, 10):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert stage.contributions == []
    assert measured_in == [1, 3, 6, 9]


def test_a_device_that_sits_out_measures_anew_at_once_when_the_load_has_changed_much(
    slow_at_first, monkeypatch
):
    stage, loads = slow_at_first, [4.0, 0.0]
    monkeypatch.setattr("device_runtime.device.training.local_task.load_per_core", lambda: loads.pop(0))
    loads.append(0.0)  # when it has measured again
    stage.link.announce(stage.offer(1))
    stage.go()
    assert [contribution.round for contribution in stage.contributions] == [1]


@pytest.mark.slow
def test_a_device_whose_measuring_fails_stays_with_what_it_knew(slow_at_first, monkeypatch, caplog):
    stage = slow_at_first
    stage.link.announce(stage.offer(1))
    stage.go()

    def no_memory(*_):
        raise OutOfMemory("none left")

    monkeypatch.setattr("device_runtime.device.training.local_task.device_speed", no_memory)
    for number in (2, 3, 4):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert stage.contributions == []
    assert caplog.text.count("the speed is not measured anew: none left") == 2


def test_an_offer_that_waited_while_the_device_was_busy_has_been_running_since_it_came(stage):
    stage.link.announce(stage.offer(1))
    stage.link.offer = None  # and nobody answers its hello with what remains
    stage.clock.now += 59.9999
    stage.go()
    assert stage.contributions == []
    assert stage.link.of(Plan)[-1].kind == ""


def test_of_two_offers_that_wait_only_the_newest_is_worked_on(stage):
    stage.link.announce(stage.offer(1))
    stage.link.announce(stage.offer(2))
    stage.go()
    assert [c.round for c in stage.contributions] == [2]


@pytest.fixture
def slow_link(stage):
    """A stage that is ready, and whose link from now on holds blocks back until `arrive` is called."""
    stage.link.announce(stage.offer(1))
    stage.go()
    tell, messages = stage.link.tell, []

    def hold(leaf, payload):
        (messages.append if leaf.startswith("block") else lambda contribution: tell(*contribution))(
            (leaf, payload)
        )

    def arrive():
        stage.link.tell = tell
        for leaf, payload in messages:
            tell(leaf, payload)

    stage.link.tell, stage.arrive = hold, arrive
    return stage


def moved(stage, number, bundle):
    """An offer whose base nobody has yet."""
    weights = {key: value + number for key, value in bundle.weights().items()}
    data = tensors.encode(weights)
    stage.contents[blob_of(data).sha] = data
    base = Base(checkpoint=(blob_of(data),), sha=blob_of(data).sha)
    return stage.offer(number, base=base)


@pytest.mark.slow
def test_a_base_that_is_on_its_way_when_the_next_round_opens_early_is_worked_on_then_the_newest(
    slow_link, bundle
):
    """Over a slow link base after base would be fetched for nothing, where rounds do not wait."""
    stage = slow_link
    for number in (2, 3, 4):
        stage.link.announce(moved(stage, number, bundle))
        stage.go()
        stage.clock.now += 5
    stage.arrive()
    stage.go()
    assert [c.round for c in stage.contributions] == [1, 2, 4]


@pytest.mark.slow
def test_a_base_that_is_on_its_way_when_its_round_is_over_is_not_worked_on(slow_link, bundle):
    stage = slow_link
    stage.link.announce(moved(stage, 2, bundle))
    stage.go()
    stage.clock.now += 59.5
    stage.link.announce(moved(stage, 3, bundle))
    stage.go()
    stage.arrive()
    stage.go()
    assert [c.round for c in stage.contributions] == [1, 3]


@pytest.mark.slow
def test_a_second_receipt_of_an_earlier_contribution_does_not_settle_the_next(stage):
    """Sent twice over a lost link, receipted twice; the second comes when round 2's is on its way."""
    stage.link.announce(stage.offer(1))
    stage.go()
    [first] = stage.contributions
    stage.link.receipts = False
    stage.link.announce(stage.offer(2))
    stage.go()
    stage.link.receipt(first, "duplicate")
    stage.go()
    stage.agent.inbox.put(Connected(first=False))
    stage.go()
    assert [c.round for c in stage.contributions] == [1, 2, 2]


@pytest.mark.slow
def test_a_device_killed_after_the_receipt_does_not_do_the_round_s_work_again(stage):
    stage.link.announce(stage.offer(1))
    stage.go()
    again = stage.start(boot=2)
    again.link.announce(again.offer(1))
    again.go()
    assert again.contributions == []
    again.link.announce(again.offer(2))
    again.go()
    assert [c.round for c in again.contributions] == [2]


@pytest.mark.slow
def test_a_device_killed_before_the_receipt_sends_the_same_again_in_its_new_name(stage):
    stage.link.receipts = False
    stage.link.announce(stage.offer(1))
    stage.go()
    [before] = stage.contributions
    again = stage.start(boot=2)
    again.go()
    [after] = again.contributions
    assert encode(after) == encode(msgspec.structs.replace(before, boot=2))


@pytest.mark.slow
def test_a_plan_is_told_anew_to_an_aggregator_that_restarted(stage):
    stage.link.announce(stage.offer(1))
    stage.go()
    stage.link.announce(stage.offer(2))
    stage.go()
    plans = len(stage.link.of(Plan))
    stage.link.announce(stage.offer(2))  # heard again: a new life of the aggregator
    stage.link.announce(stage.offer(3))
    stage.go()
    assert len(stage.link.of(Plan)) == plans + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "absurd",
    [
        {"remaining_s": float("nan")},
        {"remaining_s": float("inf")},
        {"remaining_s": -1.0},
        {"task": "../t"},
        {"task": "t" * 65},
        {"deadline_s": float("nan")},
        {"seed": -1},
        {"round": -1},
        {"kinds": ()},
    ],
)
def test_an_absurd_offer_ends_nothing_and_the_next_one_is_worked_on(stage, absurd):
    stage.link.announce(stage.offer(1, **absurd))
    stage.go()
    assert stage.contributions == []
    stage.link.announce(stage.offer(2))
    stage.go()
    assert [c.round for c in stage.contributions] == [2]


SOUND = Stretch(1, "philox4x64-popcount/1", "head", 0.1, 1, "f4", bytes(4), 7)
"""One step; the seed of the round is made from 7."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"generator": "torch-normal/1"},
        {"tunable": "no such set"},
        {"width": 0},
        {"scalars": b""},
        {"seeds": bytes(7)},
        {"scalars": b"\0\0\x80\x3f"},
    ],
)
def test_a_step_that_cannot_be_taken_leaves_one_round_out(stage, wrong):
    good, step = stage.offer(1).base, msgspec.structs.replace(SOUND, **wrong)
    stage.link.announce(stage.offer(1, base=msgspec.structs.replace(good, steps=1, at=1, tail=(step,))))
    stage.go()
    assert stage.contributions == []
    stage.link.announce(stage.offer(2))
    stage.go()
    assert [c.round for c in stage.contributions] == [2]


def test_a_contribution_that_cannot_be_kept_is_not_trained_again(stage, monkeypatch, caplog):
    def full_disk(_message):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage.agent.runner.outbox, "add", full_disk)
    stage.link.announce(stage.offer(1))
    stage.go()
    assert sum("cannot be kept" in record.message for record in caplog.records) == 1


def test_what_an_earlier_process_kept_is_sent_when_the_full_disk_has_room_again(stage, monkeypatch, caplog):
    def full_disk(_message):
        raise OSError(28, "No space left on device")

    stage.link.receipts = False
    stage.link.announce(stage.offer(1))
    stage.go()
    stage.start(boot=2)
    with monkeypatch.context() as full:
        full.setattr(stage.agent.runner.outbox, "add", full_disk)
        stage.go()
    assert (stage.contributions, "No space left" in caplog.text) == ([], True)
    stage.clock.now += 10.0
    stage.go()
    assert [sent.boot for sent in stage.contributions] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_device_that_hears_of_the_lobby_or_the_first_round_asks_at_once(stage, number):
    """Nothing comes unasked then; the clock stands still, so that no patience can run out."""
    stage.go()
    kinds = {} if number else {"kinds": ()}
    stage.link.announce(stage.offer(number, **kinds), unasked=False)
    stage.go()
    assert len(stage.link.of(Get)) == 1
    assert stage.link.of(Hello)[-1].num_examples == 40


def with_new_weights(bundle, changed):
    weights = {name: values + np.float32(changed) for name, values in bundle.weights().items()}
    return tensors.encode({k: v.astype(bundle.weights()[k].dtype) for k, v in weights.items()})


@pytest.mark.slow
def test_a_base_that_is_new_to_all_is_not_asked_for_by_those_who_are_ready(stage):
    stage.link.announce(stage.offer(1))
    stage.go()
    body = with_new_weights(stage.bundle, 0.5)
    stage.contents[blob_of(body).sha] = body
    gets = len(stage.link.of(Get))
    stage.link.announce(stage.offer(2, base=Base(checkpoint=(blob_of(body),), sha=blob_of(body).sha)))
    stage.go()
    assert [c.round for c in stage.contributions] == [1, 2]
    assert len(stage.link.of(Get)) == gets


def test_the_plan_is_told_before_the_work_begins(stage):
    stage.go()
    plans = []
    pace = stage.agent.runner.progressed

    def note(done):
        plans.append([(plan.round, plan.kind) for plan in stage.link.of(Plan)])
        pace(done)

    stage.agent.runner.progressed = note
    stage.link.announce(stage.offer())
    stage.go()
    assert plans[0] == [(1, "class-means")]


def test_the_log_says_once_whether_the_device_is_a_straggler_for_the_task_and_why(stage, caplog, monkeypatch):
    caplog.set_level("INFO")
    slow = Speed(5e6, source="set")
    monkeypatch.setattr("device_runtime.device.training.local_task.device_speed", lambda *_: slow)
    for number in (1, 2):
        stage.link.announce(stage.offer(number))
        stage.go()
    [sentence] = [r.message for r in caplog.records if "straggler" in r.message]
    assert sentence.startswith("A straggler for this task (a full update needs ")
    assert sentence.endswith(" s (mostly to compute)); it sends class-means.")


def test_the_log_says_once_what_the_task_is_for_and_what_people_give(stage, caplog):
    caplog.set_level("INFO")
    for number in (1, 2):
        texts = {"title": "Read \x1b[31mdigits", "about": "We read.", "ask": "Draw a digit."}
        stage.link.announce(msgspec.structs.replace(stage.offer(number), **texts))
        stage.go()
    sentences = [r.message for r in caplog.records if "Draw" in r.message]
    assert sentences == ["task 't' (Read [31mdigits): We read. Draw a digit."]


def test_the_log_says_once_that_no_aggregator_answers(stage, caplog):
    stage.agent.inbox.put(Received(topics.offer("t"), encode(stage.offer()), retain=True))
    for _ in range(10):
        stage.clock.now += RESEND_S
        stage.go()
    assert len(stage.link.of(Hello)) > 3
    assert caplog.text.count("no aggregator answers: is `serve` running?") == 1


def test_presence_is_the_link_s_to_tell(stage):
    states = []
    publish = stage.link.publish
    stage.link.publish = lambda topic, payload, retain=False: (
        states.append(topic) if parse(topic).leaf == "state" else publish(topic, payload, retain)
    )
    stage.go()
    assert states == []
    assert decode(stage.agent.greeting().payload, State) == State(boot=1, online=True)
    assert decode(stage.agent.will().payload, State) == State(boot=1, online=False)


def test_the_bundle_written_for_these_tests_is_another_one(bundle, another):
    assert another.sha256 != Bundle.open(bundle.path).sha256


def test_what_was_not_receipted_when_the_task_is_done_waits_no_more(stage, caplog):
    stage.link.receipts = False
    stage.link.offer = stage.offer()
    stage.go()
    assert len(stage.contributions) == 1
    stage.link.offer = None
    stage.link.announce(stage.offer(number=1, kinds=(), done=True))
    stage.go()
    assert stage.agent.done
    assert not list((stage.folder / "outbox").glob("0*.msg"))
    assert "was not receipted before the task was done" in caplog.text


def test_an_aggregator_that_restarted_is_sent_what_it_has_not_receipted_at_once(stage):
    offer = stage.offer()
    stage.link.receipts = False
    stage.link.offer = offer
    stage.link.announce(offer)
    stage.go()
    assert len(stage.contributions) == 1
    stage.link.announce(offer)  # the same round again: it has restarted; no second passes here
    stage.go()
    assert [message.seq for message in stage.contributions] == [1, 1]


def test_who_was_told_of_a_round_by_itself_says_hello_when_that_is_offered_to_all(stage):
    """It came after the round was open; then the aggregator restarted, and does not know its key."""
    stage.link.offer = offer = stage.offer()
    stage.go()
    assert len(stage.contributions) == 1
    stage.link.offer, hellos = None, len(stage.link.of(Hello))
    stage.link.announce(offer)
    stage.go()
    assert len(stage.link.of(Hello)) == hellos + 1


@pytest.mark.slow
def test_a_deadline_that_is_extended_does_not_double_what_is_on_its_way(stage):
    offer = stage.offer()
    stage.link.receipts = False
    stage.link.announce(offer)
    stage.go()
    stage.link.waiting = [topics.up("a", "contribution")]
    for _ in range(3):
        stage.link.announce(offer)
        stage.go()
    assert len(stage.contributions) == 1
    stage.link.waiting = []
    stage.link.announce(offer)
    stage.go()
    assert len(stage.contributions) == 2


@pytest.mark.slow
def test_a_device_told_to_stop_gives_up_what_it_trains_and_sends_nothing(stage):
    stage.link.offer = stage.offer(number=0, kinds=())
    stage.go()
    stop = threading.Event()
    stage.link.offer = None
    stage.link.announce(stage.offer())
    pace = stage.agent.runner.progressed

    def stop_now(done):
        stop.set()
        pace(done)

    stage.agent.runner.progressed = stop_now
    stage.agent.run(stage.link, stop)
    assert stop.is_set()
    assert not stage.contributions


@pytest.mark.slow
def test_whoever_has_a_loop_of_their_own_steps_the_agent_until_it_waits_for_nothing(stage):
    agent = stage.agent
    agent.begin(stage.link)
    assert agent.step()  # connected; says hello to nobody
    assert not agent.step()
    assert not agent.waiting
    stage.link.receipts = False
    stage.link.announce(stage.offer())
    while agent.step():
        pass
    assert [c.round for c in stage.contributions] == [1]
    assert agent.waiting  # for its receipt
    stage.link.receipt(stage.contributions[0])
    assert agent.step()
    assert not agent.waiting
    assert not agent.finished
    stage.link.offer = None
    stage.link.announce(stage.offer(kinds=(), done=True))
    while agent.step():
        pass
    assert agent.finished


def test_a_virtual_device_computes_in_the_time_of_its_profile_and_measures_nothing(stage, monkeypatch):
    monkeypatch.setattr("device_runtime.device.training.local_task.device_speed", None)
    profile = shipped("pi-zero-2w")
    emulation = Emulation(profile, time=Time(stage.clock, stage.clock.sleep))
    agent = Agent(Settings("a", stage.folder / "a.npz", stage.folder, emulation), 1, stage.clock)
    link = stage.wire(agent)
    agent.begin(link)
    link.announce(stage.offer())
    while agent.step():
        pass
    forward_s = 40 * stage.bundle.manifest.graphs["forward"].flops / profile.speed.flops_per_s
    assert stage.clock.now == pytest.approx(forward_s, rel=1e-9)
    [contribution] = link.of(Contribution)
    assert contribution.metrics.train_time_ms == round(1e3 * forward_s)
    assert not (stage.folder / "speed.json").exists()


@pytest.mark.slow
def test_an_offer_of_more_than_the_owner_gives_of_the_disk_is_not_fetched_and_the_next_one_is(stage, caplog):
    stage.agent = Agent(replace(stage.agent.settings, disk_bytes=2_000_000), 1, stage.clock)
    stage.link = stage.wire(stage.agent)
    stage.agent.inbox.put(Connected(first=True))
    huge = tuple(Blob(bytes([number]) * 32, 1_500_000) for number in range(1, 20))
    stage.contents |= {blob.sha: b"" for blob in huge}
    bad = stage.offer(1, run="bad", base=Base(checkpoint=huge, sha=b"\1" * 32))
    stage.link.announce(bad, unasked=False)
    stage.go()
    size = sum(path.stat().st_size for path in (stage.folder / "blobs").rglob("*") if path.is_file())
    assert 1_500_000 < size < 2_000_000
    assert "of the 2000000 bytes for models here are taken" in caplog.text
    stage.link.announce(stage.offer(1))
    stage.go()
    assert [c.run for c in stage.contributions] == ["r"]
