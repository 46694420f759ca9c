"""A device that was told to join a task that is not offered."""

import queue
import threading

import numpy as np
import pytest
from nacl.signing import SigningKey

from device_runtime.broker.errors import BrokerUnreachable
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link
from device_runtime.broker.wire.messages import Base, Blob, Offer, encode
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.connection import offers
from device_runtime.device.connection.connecting import Connection

BLOB = Blob(sha=bytes(32), size=1)


@pytest.fixture
def here(tmp_path):
    return Connection(BrokerUrl.parse("mqtt://127.0.0.1:1"), "a", tmp_path, "a")


@pytest.fixture
def looks(monkeypatch):
    """Look at once, and again at once."""
    monkeypatch.setattr(offers, "LOOK_S", 0.0)
    monkeypatch.setattr(offers, "AGAIN_S", 0.0)


def offer(task, **changes):
    usual = {
        "task": task, "run": "r", "round": 1, "seed": 5, "deadline_s": 60.0, "remaining_s": 60.0,
        "bundle": BLOB, "base": Base(checkpoint=(BLOB,), sha=BLOB.sha), "kinds": (),
    }  # fmt: skip
    return Offer(**{**usual, **changes})


def watched(here, answers, monkeypatch, task="nope", is_offered=lambda: False):
    """Look for the task; `found` are what the looks see, and the device is stopped after the last."""
    stop, left = threading.Event(), list(answers)

    def offered(_connection):
        answer = left.pop(0)
        if not left:
            stop.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(offers, "offered_tasks", offered)
    offers.warn_if_absent(here, task, is_offered, stop).join(timeout=60.0)
    return left


def test_a_task_that_is_not_there_is_said_with_those_that_are(here, looks, monkeypatch, caplog):
    watched(here, [{"speech": False, "digits": False, "old": True}], monkeypatch)
    assert caplog.messages == [
        "there is no task 'nope'; offered are: digits, old (done), speech. Waiting for 'nope'"
    ]


def test_that_no_task_is_offered_at_all_is_said(here, looks, monkeypatch, caplog):
    watched(here, [{}], monkeypatch)
    assert caplog.messages == [
        "there is no task 'nope', nor any other: is `serve` running? Waiting for 'nope'"
    ]


def test_it_is_said_again_until_the_task_is_there(here, looks, monkeypatch, caplog):
    left = watched(here, [{}, {"digits": False}, {"nope": False}, {}], monkeypatch)
    assert left == [{}]
    assert [message.count("Waiting for 'nope'") for message in caplog.messages] == [1, 1]


def test_a_broker_that_is_away_meanwhile_is_asked_again(here, looks, monkeypatch, caplog):
    watched(here, [BrokerUnreachable("away"), {"digits": False}], monkeypatch)
    assert len(caplog.messages) == 1


def test_a_device_that_has_heard_of_its_task_does_not_look(here, looks, monkeypatch, caplog):
    assert watched(here, [{}], monkeypatch, is_offered=lambda: True) == [{}]
    assert caplog.messages == []


def test_of_many_tasks_some_are_named():
    text = offers.absent_warning("nope", {f"task-{number:02d}": False for number in range(30)})
    assert "task-00, task-01" in text
    assert "task-19 and 10 more." in text


@pytest.fixture
def offering(broker, eventually):
    """A broker that keeps these payloads as offers, by task; returns its URL."""
    links = []

    def keep(payloads):
        url = BrokerUrl.parse(broker.url)
        link = Link(url, "aggregator", queue.SimpleQueue())
        link.connect()
        links.append(link)
        for task, payload in payloads.items():
            link.publish(topics.offer(task), payload, retain=True)
        eventually(lambda: link.unacknowledged() == 0)
        return url

    yield keep
    for link in links:
        link.close()


def test_the_offers_that_the_broker_keeps_are_the_tasks_there_are(offering, tmp_path):
    over = encode(offer("old", done=True))
    url = offering({"digits": encode(offer("digits")), "old": over, "broken": b"this is no offer"})
    assert offers.offered_tasks(Connection(url, "a", tmp_path, "a")) == {"digits": False, "old": True}


def test_to_an_enrolled_device_unsigned_offers_are_no_tasks(offering, tmp_path):
    key = bytes(SigningKey(bytes(32)).verify_key)
    url = offering({"digits": encode(offer("digits"))})
    assert offers.offered_tasks(Connection(url, "a", tmp_path, "a", key)) == {}


@pytest.mark.slow
def test_join_says_which_tasks_there_are(offering, launched, eventually, tmp_path):
    np.savez(tmp_path / "samples.npz", x=np.zeros((4, 1, 8, 8), np.float32), y=np.arange(4))
    url = offering({"digits": encode(offer("digits"))})
    words = ("join", url, "--task", "nope", "--name", "a", "--state", tmp_path / "a", "--in-process")
    with launched(tmp_path / "log", *words, "--data", tmp_path / "samples.npz"):
        eventually(lambda: "offered are: digits. Waiting for 'nope'" in (tmp_path / "log").read_text())
