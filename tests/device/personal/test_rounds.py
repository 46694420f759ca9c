"""A device's rounds, with a model of its own: against a scripted link, as test_agent.py."""

import numpy as np
import pytest

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Connected
from device_runtime.broker.wire.messages import Base, Contribution, Get, Hello
from device_runtime.device.agent.agent import Agent
from device_runtime.device.errors import RoundLeftOut, WorkDied
from device_runtime.device.machine.offer_rules import FINAL_S
from device_runtime.device.personal.after_round import personal_evaluation
from device_runtime.device.personal.kept import PersonalModelStore
from device_runtime.device.training.settings import PersonalModelSettings, Settings
from device_runtime.models.bundles import tensors
from device_runtime.models.data import SampleSource
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.statistics import held_out


@pytest.fixture
def device(stage, digits):
    """A device on the stage with a folder of digits and these settings."""

    def started(personal, count=120):
        folder = stage.folder / "samples"
        folder.mkdir(exist_ok=True)
        np.savez(folder / "a.npz", x=digits[0][:count], y=digits[1][:count])
        settings = Settings("a", SampleSource(folder), stage.folder, personal=personal)
        stage.agent = Agent(settings, 1, stage.clock)
        stage.link = stage.wire(stage.agent)
        stage.agent.inbox.put(Connected(first=True))
        return stage

    return started


def record(stage):
    return PersonalModelStore(stage.folder).record()


def test_after_each_round_the_served_model_is_kept_and_judged(device, caplog):
    caplog.set_level("INFO")
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))
    for number in (1, 2):
        stage.link.announce(stage.offer(number))
        stage.go()
    state = record(stage)
    assert (state.round, [figures.round for figures in state.rounds]) == (2, [1, 2])
    [contribution, _] = stage.contributions
    assert contribution.num_examples + state.rounds[0].served.num_examples == 120
    assert 15 <= state.rounds[0].served.num_examples <= 45
    assert "the model from before round 1 is right in" in caplog.text
    assert "the model of round 1 is right in" in caplog.text  # which round 2 began with


def test_beside_a_closed_form_head_the_figures_say_that_they_are_of_the_trained_one(device, caplog):
    """They are: the head that came beside the base, which is another, changes none of them."""
    caplog.set_level("INFO")
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))
    head = stage.bundle.manifest.head
    zeros = {held_out.CLOSED_FORM + n: 0 * stage.bundle.weights()[n] for n in (head.weight, head.bias)}
    aside = tensors.encode(zeros)
    stage.contents[blob_of(aside).sha] = aside
    for number, beside in ((1, None), (2, blob_of(aside))):
        stage.link.announce(stage.offer(number, aside=beside))
        stage.go()
    assert "the model from before round 1 is right in" in caplog.text
    assert "the model of round 1 with its trained head is right in" in caplog.text
    before, beside_it = (figures.served for figures in record(stage).rounds)
    assert before == beside_it


def test_an_own_head_is_trained_where_it_is_wished_for(device):
    stage = device(PersonalModelSettings(keep=True, held_out=0.25, head=True))
    stage.link.announce(stage.offer(1))
    stage.go()
    [personal_evaluation] = record(stage).rounds
    assert personal_evaluation.own_head.num_examples == personal_evaluation.served.num_examples
    assert bool(record(stage).head) == personal_evaluation.kept


def test_without_samples_held_out_it_is_kept_and_not_judged(device):
    stage = device(PersonalModelSettings(keep=True))
    stage.link.announce(stage.offer(1))
    stage.go()
    assert (record(stage).round, record(stage).rounds) == (1, ())
    assert stage.contributions[0].num_examples == 120


def test_without_the_wish_nothing_is_kept(device):
    stage = device(PersonalModelSettings(held_out=0.25))
    stage.link.announce(stage.offer(1))
    stage.go()
    assert record(stage) is None
    assert stage.contributions[0].num_examples == 120  # nor held out


def test_it_is_judged_only_when_nothing_is_to_be_fetched_from_the_device(device):
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))
    stage.link.receipts = False
    stage.link.announce(stage.offer(1, kinds=(registry.write(FedAvg(epochs=1, batch=60)),)))
    stage.go()
    assert stage.contributions[0].blob is not None
    assert record(stage).rounds == ()
    stage.link.receipt(stage.contributions[0])
    stage.go()
    assert [figures.round for figures in record(stage).rounds] == [1]


def test_a_device_that_is_to_stop_ends_judging_at_its_next_step(device, caplog, monkeypatch):
    caplog.set_level("INFO")
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))

    def stopping(*arguments):
        stage.agent.runner.stop.set()
        return personal_evaluation(*arguments)

    monkeypatch.setattr("device_runtime.device.training.local_task.personal_evaluation", stopping)
    stage.link.announce(stage.offer(1))
    stage.go()
    assert (len(stage.contributions), record(stage).rounds) == (1, ())
    assert "the model from before round 1 is not judged: the device stops" in caplog.text


def test_a_model_that_cannot_be_judged_costs_a_warning_and_the_device_goes_on(device, caplog):
    stage = device(PersonalModelSettings(keep=True))

    def unusable(*_):
        raise RoundLeftOut("its base is damaged")

    stage.agent.runner.backend.evaluate_personal_model = unusable
    for number in (1, 2):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert [sent.round for sent in stage.contributions] == [1, 2]
    assert "after round 1: its base is damaged" in caplog.text


@pytest.mark.slow
def test_a_disk_that_fails_costs_a_warning_and_no_round(device, caplog, monkeypatch):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr("device_runtime.device.personal.kept.replace_file", full)
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))
    stage.link.announce(stage.offer(1))
    stage.go()
    assert len(stage.contributions) == 1
    assert "the model from before round 1 cannot be kept: the disk is full" in caplog.text


def test_samples_that_come_between_rounds_take_part_in_the_next(device, digits):
    stage = device(PersonalModelSettings())
    stage.link.announce(stage.offer(1))
    stage.go()
    np.savez(stage.folder / "samples" / "b.npz", x=digits[0][200:230], y=digits[1][200:230])
    stage.link.announce(stage.offer(2))
    stage.go()
    assert [c.num_examples for c in stage.contributions] == [120, 150]
    sent = [message for message in stage.link.sent if isinstance(message, Hello | Contribution)]
    assert [type(message) for message in sent[-2:]] == [Hello, Contribution]
    assert sent[-2].num_examples == 150  # an aggregator takes no more than the hello says


def test_a_hello_says_no_fewer_samples_than_what_waits_to_be_sent(device, digits):
    stage = device(PersonalModelSettings())
    stage.link.receipts = False
    stage.link.announce(stage.offer(1))
    stage.go()
    [waiting] = stage.contributions
    np.savez(stage.folder / "samples" / "b.npz", x=digits[0][:30], y=digits[1][:30])
    (stage.folder / "samples" / "a.npz").unlink()
    stage.link.announce(stage.offer(2))
    stage.go()
    assert (waiting.num_examples, stage.contributions[-1].num_examples) == (120, 30)
    stage.agent.hello()
    assert stage.link.of(Hello)[-1].num_examples == 120


def test_a_round_without_samples_is_left_out_and_the_next_with_some_is_not(device, digits, caplog):
    stage = device(PersonalModelSettings())
    (stage.folder / "samples" / "a.npz").rename(stage.folder / "samples" / "a.away")
    np.savez(stage.folder / "samples" / "b.npz", x=digits[0][:30], y=digits[1][:30])
    stage.link.announce(stage.offer(1))
    stage.go()
    (stage.folder / "samples" / "b.npz").unlink()
    for number in (2, 3):
        stage.link.announce(stage.offer(number))
        stage.go()
    assert (
        caplog.text.count("left out: no samples are left in") == 1
    )  # of round 2; round 3 is for the same reason
    (stage.folder / "samples" / "a.away").rename(stage.folder / "samples" / "a.npz")
    stage.link.announce(stage.offer(4))
    stage.go()
    assert [(c.round, c.num_examples) for c in stage.contributions] == [(1, 30), (4, 120)]


def over(stage, number=1):
    """The word that the task is done after this round, and the model that came of it."""
    weights = {key: value + value.dtype.type(1) for key, value in stage.bundle.weights().items()}
    data = tensors.encode(weights)
    stage.contents[blob_of(data).sha] = data
    base = Base(checkpoint=(blob_of(data),), sha=blob_of(data).sha)
    return stage.offer(number, base=base, kinds=(), remaining_s=0.0, done=True), data


@pytest.mark.slow
def test_the_model_of_a_task_that_is_done_is_fetched_kept_and_judged(device):
    stage = device(PersonalModelSettings(keep=True, held_out=0.25))
    stage.link.announce(stage.offer(1))
    stage.go()
    offer, data = over(stage)
    stage.link.announce(offer, unasked=False)
    stage.agent.step()
    assert not stage.agent.finished
    stage.go()
    assert stage.agent.finished
    state = record(stage)
    assert (state.round, [figures.round for figures in state.rounds]) == (2, [1, 2])
    assert tensors.encode(PersonalModelStore(stage.folder).read().weights) == data
    gets = len(stage.link.of(Get))
    stage.link.announce(offer, unasked=False)
    assert len(stage.go().link.of(Get)) == gets


def test_a_final_model_is_asked_for_before_whoever_works_is_there(device, monkeypatch):
    stage = device(PersonalModelSettings(keep=True))
    stage.link.announce(stage.offer(1))
    stage.go()
    gets = len(stage.link.of(Get))

    def starting(_current):
        assert len(stage.link.of(Get)) == gets + 1
        raise WorkDied("it is not there yet")

    offer, data = over(stage)
    with monkeypatch.context() as patch:
        patch.setattr(stage.agent.runner.backend, "preview", starting)
        stage.link.announce(offer, unasked=False)
        stage.agent.step()
    assert stage.go().agent.finished
    assert tensors.encode(PersonalModelStore(stage.folder).read().weights) == data
    assert len(stage.link.of(Get)) == gets + 1


def test_a_final_model_is_tried_for_again_where_the_process_dies_at_it(device, caplog):
    stage = device(PersonalModelSettings(keep=True))
    stage.link.announce(stage.offer(1))
    stage.go()
    backend, deaths = stage.agent.runner.backend, [WorkDied("it was ended by SIGKILL")]
    keep = backend.keep_final_model

    def dies(*arguments):
        if deaths:
            raise deaths.pop()
        keep(*arguments)

    backend.keep_final_model = dies
    offer, data = over(stage)
    stage.link.announce(offer, unasked=False)
    assert stage.go().agent.finished
    assert "the model of task 't' is not kept: it was ended by SIGKILL" in caplog.text
    assert tensors.encode(PersonalModelStore(stage.folder).read().weights) == data


def test_a_final_model_that_does_not_come_in_time_is_not_waited_for(device, caplog):
    stage = device(PersonalModelSettings(keep=True))
    stage.link.announce(stage.offer(1))
    stage.go()
    stage.link._answer = lambda _message: None
    stage.link.announce(over(stage)[0], unasked=False)
    stage.go()
    assert not stage.agent.finished
    stage.clock.now += FINAL_S
    stage.go()
    assert stage.agent.finished
    assert "the model of task 't' has not come in time" in caplog.text
    assert record(stage).round == 1


def test_a_final_model_that_is_not_wished_for_is_not_fetched(device):
    stage = device(PersonalModelSettings())
    stage.link.announce(stage.offer(1))
    gets = len(stage.go().link.of(Get))
    stage.link.announce(over(stage)[0], unasked=False)
    assert len(stage.go().link.of(Get)) == gets
    assert stage.agent.finished
