import random

from device_runtime.broker.wire import topics
from tests.simulation.wire.host import MessageBuffer


def test_what_is_said_at_one_moment_goes_out_device_by_device_whatever_the_order_of_a_set():
    def words_of(devices):
        outlet, sent = MessageBuffer(), []
        outlet.publish(topics.down("pi-9", "receipt"), b"0")
        outlet.publish(topics.offer("t"), b"offer", retain=True)
        for device in devices:
            outlet.publish(topics.down(device, topics.block(bytes(32), 1)), b"1")
            outlet.publish(topics.down(device, topics.block(bytes(32), 2)), b"2")
        outlet.flush(lambda topic, payload, retain: sent.append((topic, payload, retain)))
        outlet.flush(lambda *_: sent.append("twice"))
        return sent

    devices = [f"pi-{number}" for number in range(9)]
    shuffled = random.Random(1).sample(devices, len(devices))
    assert words_of(shuffled) == words_of(devices)
    assert words_of(devices)[:4] == [
        (topics.down("pi-9", "receipt"), b"0", False),
        (topics.offer("t"), b"offer", True),
        (topics.down("pi-0", topics.block(bytes(32), 1)), b"1", False),
        (topics.down("pi-0", topics.block(bytes(32), 2)), b"2", False),
    ]


def test_the_outlet_notes_that_blocks_were_asked_for():
    outlet = MessageBuffer()
    outlet.publish(topics.down("pi-1", "receipt"), b"")
    assert not outlet.blocks_requested
    outlet.publish(topics.down("pi-1", "get"), b"")
    assert outlet.blocks_requested
