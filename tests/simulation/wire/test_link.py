import pytest

from device_runtime.broker.wire.link_events import Connected, Disconnected, Received, Will, packet_bytes
from device_runtime.broker.wire.messages import MESSAGE_LIMIT, MessageError
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from tests.simulation.wire.broker import PacketLog, VirtualBroker
from tests.simulation.wire.link import ClientEnd, ClientIdentity, LinkCapacity, VirtualLink

LATENCY_S = 0.05
PACKET = packet_bytes("up", bytes(993))
"""Bytes of what the tests send: 1,000 with header, topic and packet id, and two of length."""


class Pair:
    """A slow client and one without a line of its own."""

    def __init__(self, queue_limit=4096):
        self.agenda, self.log = VirtualTimeQueue(), PacketLog()
        self.broker = VirtualBroker(self.agenda)
        self.ahead_s = 0.0
        self.slow = self.client("slow", LinkCapacity(1000.0, 4000.0, LATENCY_S), "down", queue_limit)
        self.fast = self.client("fast", LinkCapacity(), "up", queue_limit)

    def client(self, name, line, pattern, queue_limit):
        came = []
        ends = ClientEnd(
            lambda event: came.append((self.agenda.now, event)),
            lambda: self.agenda.now + self.ahead_s,
            queue_limit,
        )
        link = VirtualLink(
            ClientIdentity(name, (pattern,), Will("up", b"gone", False)), line, self.broker, ends, self.log
        )
        link.came = came
        link.connect()
        return link

    def through(self, until=float("inf")):
        while self.agenda.step():
            if self.agenda.now >= until:
                break

    def times(self, link, payload):
        return [at for at, event in link.came if isinstance(event, Received) and event.payload == payload]


@pytest.fixture
def pair():
    new_pair = Pair()
    new_pair.through()
    return new_pair


def test_a_client_is_subscribed_after_three_ways_there_and_back(pair):
    assert pair.slow.came == [(pytest.approx(6 * LATENCY_S), Connected(True))]
    assert pair.fast.came == [(0.0, Connected(True))]


def test_packets_take_their_bytes_over_the_bandwidth_one_after_another_and_the_latency(pair):
    began = pair.agenda.now
    for payload in (b"a" * 993, b"b" * 993):
        assert pair.slow.publish("up", payload)
    pair.through()
    assert pair.times(pair.fast, b"a" * 993) == [pytest.approx(began + PACKET / 1000 + LATENCY_S)]
    assert pair.times(pair.fast, b"b" * 993) == [pytest.approx(began + 2 * PACKET / 1000 + LATENCY_S)]
    began = pair.agenda.now
    pair.fast.publish("down", bytes(991))
    pair.through()
    assert pair.times(pair.slow, bytes(991)) == [pytest.approx(began + PACKET / 4000 + LATENCY_S)]
    own = [(passed.up, passed.size) for passed in pair.log.passed if passed.client == "slow"]
    assert sorted(own) == [(False, PACKET), (True, PACKET), (True, PACKET)]


def test_what_a_busy_device_sends_leaves_when_it_has_got_so_far(pair):
    began = pair.agenda.now
    pair.ahead_s = 30.0
    pair.slow.publish("up", b"a" * 993)
    pair.ahead_s = 0.0
    pair.through()
    assert pair.times(pair.fast, b"a" * 993) == [pytest.approx(began + 30 + PACKET / 1000 + LATENCY_S)]


def test_what_was_on_the_line_when_it_was_lost_is_sent_again_on_the_next_connection(pair):
    pair.slow.publish("up", b"a" * 993)
    pair.agenda.at(pair.agenda.now + 0.5, pair.slow.lose)
    pair.through()
    assert pair.times(pair.fast, b"a" * 993) == []
    assert [event for _, event in pair.slow.came][1:] == [Disconnected("the line is down")]
    assert pair.times(pair.fast, b"gone") == [pytest.approx(pair.agenda.now)]  # its will
    pair.slow.publish("up", b"b")
    pair.slow.connect()
    pair.through()
    assert [event for _, event in pair.slow.came][2:] == [Connected(False)]
    assert [e.payload[:1] for _, e in pair.fast.came if isinstance(e, Received)] == [b"g", b"a", b"b"]


def test_a_message_whose_acknowledgement_was_lost_comes_twice(pair):
    arrives = pair.agenda.now + PACKET / 1000 + LATENCY_S
    pair.slow.publish("up", b"a" * 993)
    pair.agenda.at(arrives + LATENCY_S / 2, pair.slow.lose)
    pair.agenda.at(arrives + 1, pair.slow.connect)
    pair.through()
    assert len(pair.times(pair.fast, b"a" * 993)) == 2


def test_what_is_sent_to_one_who_is_away_is_not_kept_for_it(pair):
    pair.slow.lose()
    pair.fast.publish("down", b"missed")
    pair.through()
    pair.slow.connect()
    pair.through()
    assert pair.times(pair.slow, b"missed") == []


def test_a_client_that_died_sends_nothing_any_more_and_is_not_connected_again(pair):
    pair.slow.publish("up", b"a" * 993)
    pair.slow.cut()
    pair.slow.connect()
    pair.through()
    assert not pair.slow.connected
    assert [e.payload for _, e in pair.fast.came if isinstance(e, Received)] == [b"gone"]


def test_who_leaves_says_goodbye_and_has_no_will(pair):
    pair.slow.close(Will("up", b"goodbye", False))
    pair.through()
    assert [e.payload for _, e in pair.fast.came if isinstance(e, Received)] == [b"goodbye"]


def test_no_more_waits_than_there_is_room_for_and_nothing_larger_than_a_message():
    pair = Pair(queue_limit=2)
    assert [pair.slow.publish("up", b"x") for _ in range(3)] == [True, True, False]
    with pytest.raises(MessageError, match=f"{MESSAGE_LIMIT + 1} bytes on up"):
        pair.slow.publish("up", bytes(MESSAGE_LIMIT + 1))


def test_what_is_said_in_few_bytes_is_not_kept_while_the_line_is_down(pair):
    listener = pair.client("all", LinkCapacity(), "fl/v1/d/+/up/c", 10)
    pair.through()
    pair.slow.publish("fl/v1/d/slow/up/c", b"\x04 on the line")
    pair.slow.lose()
    pair.slow.publish("fl/v1/d/slow/up/c", b"\x04 while it is down")
    pair.slow.connect()
    pair.through()
    pair.slow.publish("fl/v1/d/slow/up/c", b"\x04 again")
    pair.through()
    assert [e.payload for _, e in listener.came if isinstance(e, Received)] == [b"\x04 again"]
