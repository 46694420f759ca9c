"""The real command over a real socket: what is not to be believed, and a broker that is killed under it."""

import queue
import time
from contextlib import ExitStack, suppress

import msgspec
import numpy as np
import pytest

from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.server import BrokerOptions
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import (
    Blob,
    Contribution,
    Hello,
    Metrics,
    Offer,
    Receipt,
    Signed,
)
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors


class Sender:
    """A device that sends what it is told to, and waits for the receipt."""

    def __init__(self, name, url):
        self.name, self.inbox, self.seq = name, queue.SimpleQueue(), 0
        self.link = Link(
            BrokerUrl.parse(url), name, self.inbox, LinkOptions(subscriptions=(topics.down(name, "#"),))
        )
        self.link.connect()

    def wait(self, leaf, kind, timeout_s=120):
        message = self.next(leaf, kind, timeout_s)
        return message or pytest.fail(f"no {leaf} in {timeout_s} s")

    def next(self, leaf, kind, timeout_s):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with suppress(queue.Empty):
                event = self.inbox.get(timeout=0.1)
                if isinstance(event, Received) and event.topic == topics.down(self.name, leaf):
                    return messages.decode(event.payload, kind)
        return None

    def hello(self):
        hello = Hello(boot=1, num_examples=1000, profile="pi", memory_bytes=1, engine="onnx")
        for _ in range(20):  # the aggregator may not be there yet
            self.link.publish(topics.up(self.name, "hello"), messages.encode(hello))
            if sealed := self.next("task", Signed, 1.0):
                return messages.decode(sealed.offer, Offer)
        pytest.fail("no answer to hello")

    def send(self, offer, update, **changes):
        """The receipt of a contribution."""
        content, examples = update
        self.seq += 1
        message = Contribution(
            task=offer.task,
            run=offer.run,
            round=offer.round,
            boot=1,
            seq=self.seq,
            kind="few-shot",
            num_examples=examples,
            metrics=Metrics(0.5, 1, 1, 1),
            body=content if isinstance(content, bytes) else tensors.encode(content),
        )
        message = msgspec.structs.replace(message, **changes)
        self.link.publish(topics.up(self.name, "contribution"), messages.encode(message))
        receipt = self.wait("receipt", Receipt)
        assert receipt.seq == self.seq
        return receipt


def lies(good, n):
    """(update, changes, what the reason must say) of contributions that are not to be believed."""
    weight, bias = good["head.weight"], good["head.bias"]
    negative = Metrics(0.5, -1, 1, 1)
    return [
        (({**good, "head.weight": weight[:, :3]}, n), {}, "head.weight is (10, 3), expected (10, 64)"),
        (({**good, "head.bias": bias * np.nan}, n), {}, "head.bias has 10 non-finite values"),
        (({**good, "head.bias": bias + np.float32(np.inf)}, n), {}, "non-finite"),
        (({**good, "head.bias": bias.astype(np.float64)}, n), {}, "head.bias is float64, expected float32"),
        (({**good, "head.bias": bias.astype(np.int32)}, n), {}, "head.bias is int32"),
        (({**good, "extra": bias}, n), {}, "extra not expected"),
        (({"head.bias": bias}, n), {}, "head.weight missing"),
        ((b"\x08" + bytes(7) + b"{}      ", n), {}, "missing"),
        ((b"\xff" * 200, n), {}, "not safetensors"),
        ((bytes(60_000), n), {}, "bytes, expected at most"),
        ((good, 0), {}, "num_examples is 0"),
        ((good, -5), {}, "num_examples is -5"),
        ((good, 2**64 - 1), {}, "num_examples is 18446744073709551615, expected 1 to 1000000"),
        ((good, n), {"round": 0}, "round 0 has not begun"),
        ((good, n), {"round": 2}, "round 2 has not begun, round 1 is the latest"),
        ((good, n), {"run": "0" * 8}, "it is for run '00000000', this is run"),
        ((good, n), {"task": "another"}, "it is for task 'another'"),
        ((good, n), {"kind": "full"}, "does not accept kind 'full'"),
        ((good, n), {"metrics": negative}, "metrics are negative"),
        ((good, n), {"body": b""}, "it has no content"),
        ((good, n), {"blob": Blob(bytes(32), 5)}, "both a body and a blob"),
        ((good, n), {"body": b"", "blob": Blob(bytes(32), 2**39)}, "549755813888 bytes, expected at most"),
    ]


def test_what_is_not_to_be_believed_is_refused_in_one_line_and_the_served_model_is_untouched(
    broker, serve, update_of, bundle, tmp_path
):
    folder = tmp_path / "run"
    options = "--bundle digits-wrn-10-1 --rounds 1 --deadline 60 --min-devices 2 --kinds few-shot --quiet"
    service = serve(*options.split(), "--broker", broker.url, "--run-dir", folder)
    liar, honest = Sender("liar", broker.url), Sender("honest", broker.url)
    liar.hello()
    offer = honest.hello()
    assert offer.round == 1
    good, n = update_of("few-shot")
    for update, changes, text in lies(good, n):
        receipt = liar.send(offer, update, **changes)
        assert receipt.status == "refused", text
        assert receipt.reason.startswith("update from liar refused: ")
        assert text in receipt.reason
        assert receipt.reason.isprintable()
    for leaf in ("contribution", "hello", "get", f"block/{'0' * 64}/0", "state"):
        for rubbish in (b"\xc1", bytes(200_000), b"\x9f" * 99):
            liar.link.publish(topics.up("liar", leaf), rubbish)
            liar.link.publish(topics.up("honest", leaf), rubbish)  # an open broker lets it through
    assert honest.send(offer, (good, n)).status == "accepted"
    output, _ = service.communicate(timeout=300)
    assert service.returncode == 0, output
    served = tensors.decode((folder / "served.safetensors").read_bytes())
    for name, value in {**bundle.weights(), **good}.items():
        np.testing.assert_allclose(served[name], value, rtol=1e-6)
    liar.link.close()
    honest.link.close()


@pytest.mark.slow
@pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
def test_a_run_goes_on_when_the_broker_is_killed_in_mid_round_and_comes_back(
    launched, digits_in, lines, eventually, tmp_path
):
    running = brokers.start("mosquitto")
    port, folder = BrokerUrl.parse(running.url).port, tmp_path / "run"
    words = "--bundle digits-wrn-10-1 --rounds 4 --deadline 60 --min-devices 2 --min-contributions 2"
    options = words.split()
    where = ("--broker", running.url, "--run-dir", folder)
    with ExitStack() as stack:
        stack.callback(running.stop)
        processes = [stack.enter_context(launched(tmp_path / "serve.log", "serve", *options, *where))]
        for name in ("a", "b"):
            settings = (
                "--data",
                digits_in(tmp_path / f"{name}.npz"),
                "--name",
                name,
                "--state",
                tmp_path / name,
            )
            slow = ("--as", "pi-5", "--slow", "10", "--until-done")
            device = launched(tmp_path / f"{name}.log", "join", running.url, *settings, *slow)
            processes.append(stack.enter_context(device))
        assert eventually(lambda: lines(folder / "rounds.jsonl"))
        running.kill()
        time.sleep(0.5)
        assert len(lines(folder / "rounds.jsonl")) < 4
        running = brokers.start("mosquitto", BrokerOptions(port=port))
        stack.callback(running.stop)
        assert [process.wait(600) for process in processes] == [0, 0, 0]
    counted = [(row["round"], row["device"]) for row in lines(folder / "contributions.jsonl")]
    assert sorted(counted) == [(number, name) for number in range(1, 5) for name in ("a", "b")]
