from device_runtime.broker.wire.link_events import Received, Will
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from tests.simulation.wire.broker import VirtualBroker


class Ear:
    """A client that is told at once."""

    def __init__(self, name, *filters, will=None):
        self.name, self.filters, self.will = name, filters, will
        self.messages = []

    def carry(self, message, connection):
        self.messages.append((message, connection))


def through(agenda):
    while agenda.step():
        pass


def test_a_message_goes_to_those_who_want_it_now_and_is_kept_where_it_is_to_be():
    broker = VirtualBroker(VirtualTimeQueue())
    early, late, other = Ear("a", "x/#"), Ear("b", "x/#"), Ear("c", "y")
    broker.open(early, 1)
    broker.open(other, 1)
    broker.publish(Will("x/1", b"kept", True))
    broker.publish(Will("x/2", b"gone", False))
    broker.open(late, 7)
    assert early.messages == [(Received("x/1", b"kept"), 1), (Received("x/2", b"gone"), 1)]
    assert late.messages == [(Received("x/1", b"kept", True), 7)]
    assert other.messages == []


def test_an_empty_payload_clears_what_was_retained():
    broker = VirtualBroker(VirtualTimeQueue())
    broker.publish(Will("x", b"kept", True))
    broker.publish(Will("x", b"", True))
    assert broker.retained == {}


def test_the_will_of_one_who_fell_silent_is_spoken_after_one_and_a_half_keep_alives():
    agenda = VirtualTimeQueue(100.0)
    broker = VirtualBroker(agenda, keepalive_s=20.0)
    witness, gone = Ear("w", "x"), Ear("g", will=Will("x", b"gone", False))
    broker.open(witness, 1)
    broker.open(gone, 1)
    broker.silent(gone, 1)
    assert witness.messages == []
    through(agenda)
    assert witness.messages == [(Received("x", b"gone"), 1)]
    assert agenda.now == 130.0


def test_who_is_back_before_that_is_not_taken_for_gone_but_the_session_before_ends_with_its_will():
    agenda = VirtualTimeQueue()
    broker = VirtualBroker(agenda)
    witness, back = Ear("w", "x"), Ear("b", "y", will=Will("x", b"gone", False))
    broker.open(witness, 1)
    broker.open(back, 1)
    broker.silent(back, 1)
    broker.open(back, 2)
    through(agenda)
    broker.publish(Will("y", b"news", False))
    assert witness.messages == [(Received("x", b"gone"), 1)]
    assert back.messages == [(Received("y", b"news"), 2)]


def test_who_says_goodbye_has_no_will():
    agenda = VirtualTimeQueue()
    broker = VirtualBroker(agenda)
    witness, left = Ear("w", "x"), Ear("l", "x", will=Will("x", b"gone", False))
    broker.open(witness, 1)
    broker.open(left, 1)
    broker.silent(left, 1)
    broker.leave(left)
    through(agenda)
    broker.publish(Will("x", b"news", False))
    assert witness.messages == [(Received("x", b"news"), 1)]
    assert left.messages == []
