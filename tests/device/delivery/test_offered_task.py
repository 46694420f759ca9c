"""What `explain` and `data check` fetch of the task that a device is offered."""

import queue
from contextlib import closing

import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import Base, Blob, Offer, encode
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.delivery import offered_task
from device_runtime.device.delivery.offered_task import NotFetched, fetch
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder


@pytest.fixture
def here(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(offered_task, "LISTEN_S", 0.5)
    monkeypatch.setattr(offered_task, "ANSWER_S", 1.5)
    return Connection(BrokerUrl.parse(broker.url), "a", tmp_path, "a")


def leave_offer(connection, bundle_blob):
    """A retained offer of an aggregator that is not there any more."""
    weights = blob_of(tensors.encode(bundle().weights()))
    offer = Offer(
        task="lab", run="r", round=7, seed=5, deadline_s=60.0, remaining_s=60.0, bundle=bundle_blob,
        base=Base(checkpoint=(weights,), sha=weights.sha), kinds=(), about="We read.",
    )  # fmt: skip
    with closing(Link(connection.url, "aggregator", queue.SimpleQueue(), LinkOptions())) as link:
        link.connect(10.0)
        link.publish(topics.offer("lab"), encode(offer), retain=True)


def bundle():
    return Bundle.open(shipped_folder("digits-wrn-10-1"))


def test_an_offer_of_an_aggregator_that_is_gone_is_called_one_that_the_broker_keeps(here):
    leave_offer(here, blob_of(bundle().packed()))
    task = fetch(here, "", here.folder)
    assert (task.answered, task.weights) == (False, None)
    assert task.text == "We read.\nNo aggregator answers: the offer of round 7 is one that the broker keeps."


def test_what_is_not_here_is_not_waited_for_where_no_aggregator_answers(here):
    leave_offer(here, Blob(sha=bytes(range(32)), size=5))
    with pytest.raises(NotFetched, match="no aggregator answers at mqtt://.*: is `serve` running"):
        fetch(here, "", here.folder)


class Answering(queue.SimpleQueue):
    """An aggregator that has no blob."""

    def put(self, event, *_):
        if isinstance(event, Received):
            self.link.publish(topics.down("a", topics.block(offered_task.NO_BLOB.sha, -1)), b"")


def test_an_aggregator_that_answers_that_it_lacks_a_blob_is_there(here):
    leave_offer(here, blob_of(bundle().packed()))
    inbox = Answering()
    options = LinkOptions(subscriptions=(topics.up("a", "get"),))
    with closing(Link(here.url, "aggregator", inbox, options)) as inbox.link:
        inbox.link.connect(10.0)
        task = fetch(here, "lab", here.folder)
    assert (task.answered, task.text) == (True, "We read.")
