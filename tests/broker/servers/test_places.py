"""Who gets a place at a listening socket, and who loses one; on a clock of the test's own."""

import asyncio
import socket

import pytest

from device_runtime.broker.servers.places import Place, Places, SharedListener, Shares, Stage, address_share


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Table:
    """Places, and the connections that were ended."""

    def __init__(self, **shares):
        self.clock, self.ended = Clock(), []
        self.places = Places(Shares(**{"burst": 1000.0, **shares}), clock=self.clock)

    def come(self, host, stage=Stage.SILENT, name=None) -> Place | None:
        place = self.places.admit(host, lambda: self.ended.append(name or host))
        if place and stage is not Stage.SILENT:
            place.enter(stage)
        return place

    def after(self, seconds):
        """The connections that were ended until then."""
        for _ in range(int(seconds * 10)):
            self.clock.now += 0.1
            self.places.look()
        return self.ended


def test_in_a_full_table_the_oldest_silent_connection_of_the_largest_crowd_goes():
    table = Table(most=5)
    for name in ("first", "second", "third"):
        table.come("192.0.2.1", name=name)
    table.come("192.0.2.2", name="other")
    table.come("192.0.2.2", name="another")
    assert table.come("192.0.2.9")
    assert table.ended == ["first"]
    assert len(table.places) == 5


@pytest.mark.parametrize(
    ("stages", "ended"),
    [
        ((Stage.BUSY, Stage.IDLE, Stage.SILENT), "SILENT"),
        ((Stage.BUSY, Stage.IDLE, Stage.PROVEN), "IDLE"),
        ((Stage.PROVEN, Stage.BUSY, Stage.BUSY), "BUSY"),
    ],
)
def test_of_a_crowd_the_one_goes_that_has_come_least_far(stages, ended):
    table = Table(most=3)
    for stage in stages:
        table.come("192.0.2.1", stage, stage.name)
    assert table.come("192.0.2.9")
    assert table.ended == [ended]


def test_a_connection_that_has_shown_a_credential_is_never_ended_for_another():
    table = Table(most=3)
    for _ in range(3):
        table.come("192.0.2.1", Stage.PROVEN)
    assert table.come("192.0.2.9") is None
    assert table.ended == []


def test_who_has_most_connections_takes_none_from_others_and_loses_no_request():
    """A browser whose request is lost has a page without its script."""
    table = Table(most=4)
    for _ in range(3):
        table.come("192.0.2.1", Stage.BUSY)
    table.come("192.0.2.2", name="other")
    assert table.come("192.0.2.1") is None
    assert table.ended == []


def test_an_address_has_so_many_silent_connections_and_its_newest_stay():
    table = Table(silent=2)
    for name in "abcd":
        assert table.come("192.0.2.1", name=name)
    assert table.ended == ["a", "b"]
    assert table.come("192.0.2.2")
    assert table.ended == ["a", "b"]


def test_an_address_opens_so_many_at_once_and_then_so_many_a_second():
    table = Table(burst=4.0, rate=2.0, silent=99)
    assert [bool(table.come("192.0.2.1")) for _ in range(6)] == [True] * 4 + [False] * 2
    assert table.come("192.0.2.2")
    table.clock.now += 1.0
    assert [bool(table.come("192.0.2.1")) for _ in range(3)] == [True, True, False]


def test_a_proxy_that_speaks_for_many_has_no_share():
    table = Table(silent=1, of_address=2, burst=1.0, trusted=("10.0.0.0/8",))
    assert all(table.come("10.0.0.2") for _ in range(20))
    assert table.ended == []


def test_an_ipv6_network_is_one_address():
    table = Table(silent=1)
    table.come("2001:db8::1", name="first")
    table.come("2001:db8::ffff:1")
    assert table.ended == ["first"]
    assert address_share("fe80::1%eth0") == "fe80::/64"


def test_a_silent_connection_is_ended_in_time_and_one_that_requests_is_not():
    table = Table(first_s=5.0)
    table.come("192.0.2.1", name="silent")
    table.come("192.0.2.1", Stage.BUSY)
    assert table.after(4.5) == []
    assert table.after(1.0) == ["silent"]
    assert table.after(600.0) == ["silent"]


@pytest.mark.parametrize(("rate", "ended"), [(0, ["reader"]), (50, ["reader"]), (300, []), (1e6, [])])
def test_who_takes_too_little_of_what_is_sent_is_ended_and_a_thin_link_is_not(rate, ended):
    table = Table(stall_s=10.0, least_rate=100.0)
    place = table.come("192.0.2.1", Stage.PROVEN, "reader")
    place.sent = lambda: int(rate * table.clock.now)
    assert table.after(60.0) == ended


def test_the_time_for_which_nothing_waits_to_be_sent_is_not_counted():
    table = Table(stall_s=10.0)
    place = table.come("192.0.2.1", Stage.PROVEN, "reader")
    place.sent = lambda: None if int(table.clock.now) % 9 == 0 else 7
    assert table.after(60.0) == []


def test_a_place_is_free_again_when_its_socket_is_closed_however_that_happens():
    async def opened_and_closed() -> list[int]:
        places = Places(Shares())
        listener = SharedListener.of(socket.create_server(("127.0.0.1", 0)), places)
        counts = []
        with listener:
            for close in (lambda s: s.close(), lambda s: s.reset(), lambda s: (s.hang_up(), s.close())):
                with socket.create_connection(listener.getsockname()):
                    connection = await _accepted(listener)
                    counts.append(len(places))
                    close(connection)
                    counts.append(len(places))
        return counts

    assert asyncio.run(opened_and_closed()) == [1, 0] * 3


async def _accepted(listener):
    while True:
        try:
            return listener.accept()[0]
        except BlockingIOError:
            await asyncio.sleep(0.01)
