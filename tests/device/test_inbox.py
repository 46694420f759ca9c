"""Events in order, each with when it came; and a wait that can be ended."""

import signal

from device_runtime.broker.wire.link_events import Connected, Disconnected
from device_runtime.device.agent.agent import DeviceInbox


def test_events_come_in_order_each_with_its_moment(clock):
    inbox = DeviceInbox(clock)
    inbox.put(Connected(first=True))
    clock.now = 3.0
    inbox.put(Disconnected("gone"))
    clock.now = 9.0
    assert [inbox.next(0.0), inbox.next(0.0), inbox.next(0.0)] == [
        (Connected(first=True), 0.0), (Disconnected("gone"), 3.0), None
    ]  # fmt: skip


def test_a_wait_that_is_ended_by_a_wake_takes_no_event_and_moves_no_moment(clock):
    inbox = DeviceInbox(clock)
    inbox.wake()
    clock.now = 2.0
    inbox.put(Connected(first=True))
    assert inbox.next(3600.0) is None
    assert inbox.next(3600.0) == (Connected(first=True), 2.0)


def test_a_signal_ends_a_wait_that_has_no_end(clock):
    inbox = DeviceInbox(clock)
    before = signal.signal(signal.SIGALRM, lambda *_: inbox.wake())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert inbox.next(3600.0) is None
    finally:
        signal.signal(signal.SIGALRM, before)
