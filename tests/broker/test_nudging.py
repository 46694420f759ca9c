import threading

import pytest

from broker import nudging
from broker.link import LinkOptions, Received
from broker.nudging import Nudges
from broker.running import WEB_USER, BrokerOptions, WebSockets


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(nudging, "AWAKE_S", 0.05)
    monkeypatch.setattr(nudging, "EVERY_S", 0.001)


def test_a_broker_is_nudged_for_a_while_and_again_when_it_is_asked_for_again(briefly, eventually):
    said = []
    nudges = Nudges(lambda: said.append(threading.current_thread().name))
    assert not said
    for _ in range(2):
        before = len(said)
        nudges.begin()
        eventually(lambda known=before: len(said) >= known + 3)
        eventually(lambda: _stands_still(said))
    assert set(said) == {"nudges"}


def _stands_still(said):
    known = len(said)
    threading.Event().wait(0.1)
    return len(said) == known


def test_what_is_large_gets_through_to_websockets_and_the_nudges_do_not(house):
    running = house.broker(BrokerOptions(web=WebSockets(password="web")))
    there = running.web_url.replace("://", f"://{WEB_USER}:web@")
    reader = house.listener(there, WEB_USER, "fl/v1/d/+/dn/#")
    writer = house.peer(running.url, "aggregator", LinkOptions(nudges=True)).link
    sent = {f"fl/v1/d/{WEB_USER}/dn/block/{n}": bytes([n]) * 65_536 for n in range(8)}
    for topic, payload in sent.items():
        assert writer.publish(topic, payload)
    heard = [reader.expect(Received, timeout_s=30.0) for _ in sent]
    assert {message.topic: message.payload for message in heard} == sent
    assert writer.bytes_up < 9 * 65_536
