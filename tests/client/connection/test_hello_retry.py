"""A hello is said until there is an answer: a broker may drop what it has acknowledged."""

import pytest

from device_runtime.broker.wire.link import Received
from device_runtime.broker.wire.messages import Hello, encode
from device_runtime.broker.wire.topics import down
from device_runtime.client.connection.hello_retry import HelloRetry


def said(greeting, seconds):
    """The seconds at which it is said again, of a look at each."""
    moments = []
    for now in range(seconds):
        if greeting.due(float(now)):
            moments.append(now)
            greeting.sent(float(now))
    return moments


def test_what_has_no_answer_is_said_again_after_waits_that_double_up_to_a_minute():
    greeting = HelloRetry(lambda: 0)
    greeting.sent(0.0)
    assert said(greeting, 200) == [10, 30, 70, 130, 190]


def test_nothing_is_said_again_once_there_is_an_answer_or_before_anything_was_said():
    greeting = HelloRetry(lambda: 0)
    assert said(greeting, 100) == []
    greeting.sent(0.0)
    greeting.answered()
    assert said(greeting, 100) == []
    greeting.sent(0.0)
    assert said(greeting, 12) == [10]  # waits are short again


def test_what_is_still_on_its_way_to_the_broker_is_not_said_again():
    slow = iter([1] * 50 + [0] * 50)
    greeting = HelloRetry(lambda: next(slow))
    greeting.sent(0.0)
    assert said(greeting, 100) == [59, 79]


@pytest.mark.slow
def test_a_device_whose_hello_is_lost_is_heard_all_the_same(stage):
    def hellos():
        return stage.link.of(Hello)

    stage.go()
    before = len(hellos())
    stage.clock.now += 10.5
    stage.go()
    assert len(hellos()) == before + 1
    stage.agent.inbox.put(Received(down("a", "task"), encode(stage.offer(0))))
    stage.go()
    answered = len(hellos())
    stage.agent.inbox.put(Received(down("a", "task"), encode(stage.offer(0))))
    stage.go()
    stage.clock.now += 100
    stage.go()
    assert len(hellos()) == answered
