"""A task that selects its devices: who is asked, who is left out and told why, also after a restart."""

import logging

import msgspec
import pytest

from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import Hello, State
from device_runtime.strategies.plugins import load_object
from tests.aggregator.tasks.test_drawing import EXAMPLE

KITCHEN = {"devices_with": ("tag=kitchen",), "rounds": 2}


def join(b, device, *tags, boot=1, memory=2**29):
    b.say(device, "state", State(boot=boot, online=True))
    about = {"profile": "pi", "memory_bytes": memory, "engine": "onnx", "tags": tags, "version": "0.1.0"}
    b.say(device, "hello", Hello(boot=boot, num_examples=1000, **about))


def offers(b, device):
    """The rounds that a device was offered by name; 0: the lobby."""
    topic = topics.down(device, "task")
    return [messages.offer_in(payload).round for where, payload in b.link.sent if where == topic]


def contribute(b, device, update_of, number=1):
    kind = "class-means"
    return b.contribute(device, b.contribution(kind, update_of(kind), number))[0]


def test_only_devices_that_meet_the_conditions_are_asked_and_waited_for(bench, make_task, update_of, caplog):
    caplog.set_level(logging.INFO)
    b = bench(make_task("class-means", min_devices=1, **KITCHEN))
    join(b, "hall-pi", "hall")
    assert b.service.state.phase == "wait"  # it is no device of this task
    join(b, "pi-1", "kitchen", "floor=2")
    assert (offers(b, "hall-pi"), offers(b, "pi-1")[-1]) == ([0], 1)
    assert b.offer.round == 0  # what all are offered is the lobby
    assert "with tag=kitchen, and it has tags hall" in caplog.text
    refused = contribute(b, "hall-pi", update_of)
    assert (refused.status, refused.reason[-33:]) == ("refused", "hall-pi was not asked for round 1")
    assert contribute(b, "pi-1", update_of).status == "accepted"
    assert b.service.state.round == 2  # nobody waited for the other one


def test_a_device_that_comes_while_a_round_is_open_is_asked_too(bench, make_task):
    b = bench(make_task("class-means", min_devices=1, **KITCHEN))
    join(b, "pi-1", "kitchen")
    join(b, "pi-2", "kitchen")
    assert offers(b, "pi-2")[-1] == 1
    assert sorted(b.service.state.waiting) == ["pi-1", "pi-2"]


def test_a_device_whose_tags_change_takes_part_from_its_next_hello(bench, make_task, caplog):
    caplog.set_level(logging.INFO)
    b = bench(make_task("class-means", min_devices=1, **KITCHEN))
    join(b, "pi-1")
    join(b, "pi-1")
    assert caplog.text.count("takes no part") == 1  # said once, not at each hello
    join(b, "pi-1", "kitchen", boot=2)
    assert "pi-1 takes part" in caplog.text
    assert offers(b, "pi-1")[-1] == 1


def test_after_a_restart_only_those_that_were_asked_are_waited_for(bench, make_task, update_of):
    b = bench(make_task("class-means", min_devices=1, **KITCHEN))
    join(b, "hall-pi", "hall")
    join(b, "pi-1", "kitchen")
    b = b.restart()
    for device in ("hall-pi", "pi-1"):  # what the broker has retained
        state = messages.encode(State(boot=1, online=True))
        b.raw(topics.up(device, "state"), state, retain=True)
    b.wait(2)
    assert sorted(b.service.state.ready) == ["pi-1"]
    assert contribute(b, "pi-1", update_of).status == "accepted"
    assert b.service.state.round == 2


def test_devices_that_are_held_out_are_never_asked(bench, make_task, update_of):
    b = bench(make_task("class-means", min_devices=1, rounds=1, hold_out_devices=("pi-2", "memory<100MB")))
    join(b, "pi-1")
    join(b, "pi-2")
    join(b, "small", memory=10**7)
    assert [offers(b, device) for device in ("pi-2", "small")] == [[0], [0]]
    assert contribute(b, "pi-1", update_of).status == "accepted"
    assert b.offer.done


@pytest.fixture
def high_loss(monkeypatch):
    from device_runtime.aggregator.tasks.drawing import DrawingPolicy

    monkeypatch.setitem(DrawingPolicy.registry, "high-loss", load_object(f"{EXAMPLE}:HighLoss"))


def test_an_own_policy_draws_by_the_losses_of_rounds_before_a_restart_too(
    bench, make_task, update_of, high_loss
):
    settings = {"devices_per_round": 2, "min_contributions": 2, "min_devices": 2, "draw": "high-loss"}
    b = bench(make_task("class-means", rounds=3, **settings))
    join(b, "pi-1")
    join(b, "pi-2")
    losses = {"pi-1": 0.5, "pi-2": 0.1}
    join(b, "pi-3")  # round 1 has asked the two others
    for device, loss in losses.items():
        sent = b.contribution("class-means", update_of("class-means"))
        metrics = messages.Metrics(loss, 1000, 1, 1)
        b.contribute(device, msgspec.structs.replace(sent, metrics=metrics))
    assert b.service.state.round == 2
    drawn = sorted(device for device, number in b.service.state.asked.items() if number == 2)
    assert drawn == ["pi-1", "pi-3"]  # the new device, and that with the higher loss
    earlier = b.store.contributions.earlier_updates(1)
    assert {device: each.train_loss for device, each in earlier.items()} == losses
    assert earlier["pi-1"].last_round == earlier["pi-1"].rounds == 1
    assert earlier["pi-1"].train_s == 1.0
    b = b.restart()
    assert b.store.contributions.earlier_updates(1) == earlier
    assert b.store.contributions.earlier_updates(0) == {}
