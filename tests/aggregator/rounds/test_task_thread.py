"""Several tasks in one process: what is said of those that have ended."""

import queue
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from device_runtime.aggregator.rounds import task_thread
from device_runtime.aggregator.rounds.task_thread import TaskThread
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Connected, Received, Will
from device_runtime.broker.wire.messages import Blob, Get, Hello, encode


class Scripted:
    """A service that runs until it is told to end."""

    def __init__(self, name):
        self.over = threading.Event()
        self.state = SimpleNamespace(round=3, phase="done")
        self._name = name

    def run(self, stop):
        self.over.wait(60)

    def has(self, blob):
        return self._name == "speech"

    def withdrawal(self):
        return Will(f"offers/{self._name}", b"")

    def last_word(self):
        return lambda device: Will(f"{device}/{self._name}", b"done", retain=False)

    def close(self):
        pass


class Wire:
    """Keeps what is published, and waits for it."""

    def __init__(self):
        self.sent = queue.SimpleQueue()

    def publish(self, topic, payload, retain=False):
        self.sent.put((topic, payload, retain))
        return True


@pytest.fixture
def house(make_task):
    """Two tasks that are served in a thread of their own, as one process does."""
    services = {name: Scripted(name) for name in ("digits", "speech")}
    threads = [TaskThread(make_task("few-shot", name=name), threading.Event()) for name in services]
    for each in threads:
        each.open(lambda thread_=each: services[thread_.task.name])
    inbox, wire = task_thread.inbox_of(threads), Wire()
    thread = threading.Thread(target=task_thread.serve, args=(threads, inbox, wire.publish))
    thread.start()
    yield SimpleNamespace(services=services, threads=threads, inbox=inbox, wire=wire, thread=thread)
    for service in services.values():
        service.over.set()
    thread.join(120)
    assert not thread.is_alive()


def ended(thread):
    thread._thread.join(120)
    assert not thread.running


def test_that_a_task_has_ended_is_said_at_once_and_again_to_a_broker_that_may_have_forgotten_it(house):
    house.inbox.put(Connected(first=True))
    house.services["digits"].over.set()
    ended(house.threads[0])
    over = ("offers/digits", b"", True)
    assert house.wire.sent.get(timeout=120) == over
    house.inbox.put(Received("rubbish", b""))
    house.inbox.put(Connected(first=False))
    assert house.wire.sent.get(timeout=120) == over
    assert house.wire.sent.empty()


def test_a_device_in_no_task_yet_fetches_from_the_task_that_has_the_blob(house):
    get = Received(topics.up("a", "get"), encode(Get(blob=Blob(bytes(32), 5), blocks=(0,))))
    house.inbox.put(get)
    inbox = house.threads[1].inbox
    assert inbox.get(timeout=60) == get


def test_a_device_that_asks_for_a_task_that_is_over_is_told_so_while_other_tasks_go_on(house):
    house.services["digits"].over.set()
    ended(house.threads[0])
    assert house.wire.sent.get(timeout=120) == ("offers/digits", b"", True)
    hello = Hello(boot=1, num_examples=10, profile="pi", memory_bytes=1, engine="onnx", task="digits")
    house.inbox.put(Received(topics.up("pi-1", "hello"), encode(hello)))
    assert house.wire.sent.get(timeout=120) == ("pi-1/digits", b"done", False)
    assert house.wire.sent.empty()


SIGNALLED = """
import os, signal, sys, threading
sys.path[:] = {path!r}
from types import SimpleNamespace
from device_runtime.aggregator.rounds.task_thread import TaskThread
from device_runtime.service_process import stopped_by_signals

stop = threading.Event()
service = SimpleNamespace(
    run=lambda stop: stop.wait(100), withdrawal=lambda: None, last_word=lambda: None, close=lambda: None,
    state=SimpleNamespace(round=1, phase="collect"), has=None,
)
signals = stopped_by_signals(stop.set)
signals.__enter__()
one = TaskThread(SimpleNamespace(name="digits"), stop)
one.open(lambda: service)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})  # so that another thread is given it
one.end()
print("ended in round", one.ended.round)
"""


def test_a_signal_that_does_not_interrupt_the_main_thread_ends_it_all_the_same():
    code = SIGNALLED.format(path=sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended in round 1\n"), done.stderr
