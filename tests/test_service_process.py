"""How a service is stopped by signals, and what systemd hears of it."""

import os
import signal
import socket
import threading

import pytest

from device_runtime.service_process import SystemdWatchdog, notify_systemd, stopped_by_signals


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal_the_next_of_either_kind_ends_it_at_once(first):
    both, stop, woken = (signal.SIGINT, signal.SIGTERM), threading.Event(), []
    before = [signal.getsignal(number) for number in both]
    with stopped_by_signals(stop.set, lambda: woken.append(True)):
        assert not stop.is_set()
        signal.raise_signal(first)
        assert stop.is_set()
        assert woken == [True]
        assert [signal.getsignal(number) for number in both] == [signal.SIG_DFL, signal.SIG_DFL]
    assert [signal.getsignal(number) for number in both] == before


def test_an_abstract_address_is_reached_and_one_where_nobody_listens_is_survived(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0device-runtime-test-" + str(os.getpid()))
        listener.settimeout(120.0)
        monkeypatch.setenv("NOTIFY_SOCKET", "@device-runtime-test-" + str(os.getpid()))
        notify_systemd("READY=1")
        assert listener.recv(64) == b"READY=1"
    notify_systemd("READY=1")


@pytest.mark.parametrize("text", ["", "soon", "0"])
def test_without_a_watchdog_there_are_no_beats(monkeypatch, systemd, text):
    monkeypatch.setenv("NOTIFY_SOCKET", str(systemd.path))
    monkeypatch.setenv("WATCHDOG_USEC", text)
    with SystemdWatchdog(lambda: 0.0):
        assert systemd.hears() == "READY=1"
        assert systemd.hears(within_s=0.2) is None
    assert systemd.hears() == "STOPPING=1"
