"""A helper as a process at a real broker: plain, TLS, WebSockets; killed, and cut off."""

import os
import pwd
import queue
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from device_runtime.broker.servers import brokers, mosquitto
from device_runtime.broker.servers.broker_folder import BrokerFolder
from device_runtime.broker.servers.server import BrokerOptions, find_port
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.messages import Get, State, decode, encode
from device_runtime.broker.wire.sum_messages import SumAnswer
from device_runtime.broker.wire.transfer import Pull, answer_get
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.strategies.masking.masks import MaskedVector

needs_mosquitto = pytest.mark.skipif(mosquitto.find() is None, reason="mosquitto is not installed")
PATIENCE_S, AGAIN_S = 120.0, 2.0
THREE = ("pi-1", "pi-2", "pi-3")


class Asker:
    """An aggregator that asks the helper called club, until it has an answer."""

    def __init__(self, url, folder):
        self.inbox = queue.SimpleQueue()
        options = LinkOptions(subscriptions=(topics.up("club", "#"),), reconnect_s=(0.05, 0.5))
        self.link = Link(url, f"asker-{secrets.token_hex(4)}", self.inbox, options)
        self.link.connect(60.0)
        self.blobs = Blobs(folder / "asker")
        self.states = []

    def ask(self, request):
        """The answer to a request, which is sent again and again, and its content."""
        answer, asked_s, end = None, 0.0, time.monotonic() + PATIENCE_S
        while answer is None:
            assert time.monotonic() < end, "no answer"
            if time.monotonic() - asked_s > AGAIN_S:
                self.link.publish(topics.down("club", "sum"), encode(request))
                asked_s = time.monotonic()
            for leaf, payload in self.messages():
                if leaf == "sum" and decode(payload, SumAnswer).id == request.id:
                    answer = decode(payload, SumAnswer)
        return answer, self._content(answer)

    def messages(self):
        """Messages that have come; Gets are answered, and presence is noted."""
        messages = []
        with suppress(queue.Empty):
            event = self.inbox.get(timeout=0.05)
            if isinstance(event, Received):
                address = topics.parse(event.topic)
                if address.leaf == "state":
                    self.states.append(decode(event.payload, State))
                elif address.leaf == "get":
                    get = decode(event.payload, Get)
                    for index, data in answer_get(self.blobs, get):
                        leaf = topics.block(get.blob.sha, index)
                        self.link.publish(topics.down("club", leaf), data)
                else:
                    messages.append((address.leaf if address.leaf != "block" else address, event.payload))
        return messages

    def until_state(self, condition):
        """Waits for a state of the helper, which it returns."""
        end = time.monotonic() + PATIENCE_S
        while not (matches := [state for state in self.states if condition(state)]):
            assert time.monotonic() < end, self.states
            self.messages()
        return matches[0]

    def _content(self, answer):
        if answer.blob is None:
            return answer.body
        pull = Pull(answer.blob, self.blobs.partial(answer.blob))
        end = time.monotonic() + PATIENCE_S
        while not pull.done:
            assert time.monotonic() < end and not pull.refused, "no blocks"
            if blocks := pull.next_blocks(time.monotonic()):
                self.link.publish(topics.down("club", "get"), encode(Get(blob=answer.blob, blocks=blocks)))
            for address, payload in self.messages():
                if not isinstance(address, str) and address.sha == answer.blob.sha:
                    pull.received(address.index, payload, time.monotonic())
        return pull.finish().read_bytes()


@contextmanager
def asking(url, folder) -> Iterator[Asker]:
    new_asker = Asker(url, folder)
    try:
        yield new_asker
    finally:
        new_asker.link.close()


class Process:
    """`device-runtime mask-helper` in a folder, with its log and the key that it prints."""

    def __init__(self, folder, launched, program, eventually):
        self.log, self.state = folder / "helper.log", folder / "club"
        self._launched, self._program, self._eventually = launched, program, eventually

    def start(self, *arguments):
        return self._launched(self.log, "mask-helper", *arguments, "--state", self.state)

    def key(self, *arguments):
        words = [
            self._program,
            "mask-helper",
            *map(str, arguments),
            "--state",
            str(self.state),
            "--print-key",
        ]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        name, _, key = done.stdout.strip().partition("=")
        assert name == "club"
        return bytes.fromhex(key)

    def connected(self, times=1):
        self._eventually(lambda: self.log.exists() and self.log.read_text().count("connected to") >= times)


@pytest.fixture
def process(tmp_path, launched, program, eventually):
    return Process(tmp_path, launched, program, eventually)


@pytest.fixture(params=[pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"])
def either_broker(request):
    running = brokers.start(request.param)
    yield running
    running.stop()


def check(asker, masks, request, devices):
    answer, content = asker.ask(request)
    assert answer.refusal == ""
    total, expected = MaskedVector.from_bytes(content, masks.values, masks.sums), masks.expected(*devices)
    assert (total.values == expected.values).all() and (total.sums == expected.sums).all()
    return answer


def test_a_large_set_over_large_vectors_is_summed_and_both_go_in_blocks(
    either_broker, process, masking, tmp_path
):
    url = either_broker.url
    masks = masking(publics=[process.key(url, "--name", "club")], values=100_000)
    many = [f"pi-{number}" for number in range(1200)]
    with process.start(url, "--name", "club") as helper, asking(BrokerUrl.parse(url), tmp_path) as asker:
        process.connected()
        blob = asker.blobs.put(masks.request(*many)[1])
        answer = check(asker, masks, masks.request(*many, body=b"", blob=blob)[0], many)
        assert blob.size > 65536 and answer.blob.size > 6 * 65536
        asker.until_state(lambda state: state.online)
        helper.send_signal(signal.SIGTERM)
        assert helper.wait(PATIENCE_S) == 0
        asker.until_state(lambda state: state.leaving)


@needs_mosquitto
def test_a_helper_that_is_killed_is_seen_to_be_away_and_gives_the_same_answer_in_its_next_life(
    broker, process, masking, tmp_path
):
    masks = masking(publics=[process.key(broker.url, "--name", "club")])
    request, more = masks.request(*THREE)[0], masks.request(*THREE, "pi-4")[0]
    with asking(BrokerUrl.parse(broker.url), tmp_path) as asker:
        with process.start(broker.url, "--name", "club") as helper:
            first = check(asker, masks, request, THREE)
            helper.kill()
            boot = asker.until_state(lambda state: not state.online).boot
        with process.start(broker.url, "--name", "club"):
            assert check(asker, masks, request, THREE) == first
            asker.until_state(lambda state: state.online and state.boot != boot)
            refusal, _ = asker.ask(more)
            assert "in another set of round 4" in refusal.refusal


KILLED_BEFORE_THE_ANSWER = """
import os, secrets, signal, sys, threading, time
sys.path[:] = {path!r}
from pathlib import Path
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.mask_helper.helper import HelperClocks, HelperSettings, MaskHelper
from device_runtime.mask_helper.ledger import Ledger

class Killing(Link):
    def publish(self, topic, payload, retain=False):
        if topic.endswith("up/sum"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().publish(topic, payload, retain)

folder = Path({folder!r})
ledger = Ledger(folder, secrets.token_bytes)
helper = MaskHelper(HelperSettings("club", folder), 1, ledger, HelperClocks(time.monotonic, time.time))
options = LinkOptions(helper.will(), helper.subscriptions, greeting=helper.greeting())
link = Killing(BrokerUrl.parse({url!r}), "club", helper.inbox, options)
link.connect()
helper.run(link, threading.Event())
"""


def test_a_helper_killed_after_the_commit_and_before_the_answer_gives_it_in_its_next_life(
    broker, process, masking, tmp_path
):
    masks = masking(publics=[process.key(broker.url, "--name", "club")], values=50_000)
    request, another = masks.request(*THREE)[0], masks.request(*THREE, "pi-4")[0]
    code = KILLED_BEFORE_THE_ANSWER.format(path=sys.path, folder=str(process.state), url=broker.url)
    with asking(BrokerUrl.parse(broker.url), tmp_path) as asker:
        with subprocess.Popen([sys.executable, "-c", code]) as killed:
            end = time.monotonic() + PATIENCE_S
            while killed.poll() is None:
                assert time.monotonic() < end
                asker.link.publish(topics.down("club", "sum"), encode(request))
                time.sleep(0.2)
        assert killed.returncode == -signal.SIGKILL
        with process.start(broker.url, "--name", "club"):
            assert "in another set" in asker.ask(another)[0].refusal
            check(asker, masks, request, THREE)


def test_a_broker_that_was_away_is_reached_again(process, masking, tmp_path):
    if mosquitto.find() is None:
        pytest.skip("mosquitto is not installed")
    port = find_port(BrokerOptions())
    url = f"mqtt://127.0.0.1:{port}"
    masks = masking(publics=[process.key(url, "--name", "club")])
    with process.start(url, "--name", "club"):  # it waits for its broker
        for round_ in range(2):
            running = brokers.start("mosquitto", BrokerOptions(port=port))
            try:
                process.connected(round_ + 1)
                masks = masking(publics=masks.publics, more={"round": round_})
                with asking(BrokerUrl.parse(url), tmp_path) as asker:
                    check(asker, masks, masks.request(*THREE)[0], THREE)
            finally:
                running.stop()
    assert "the connection to the broker at" in process.log.read_text()


@needs_mosquitto
@pytest.mark.parametrize("web", [(), ("--websockets",)], ids=["tls", "wss"])
def test_an_enrolled_helper_answers_over_tls_and_within_the_access_list(
    web, process, masking, tmp_path, program, launched, eventually
):
    ports = set()
    while len(ports) < 2:
        ports.add(find_port(BrokerOptions()))
    site, (port, web_port) = tmp_path / "enrolment", ports

    def command(*words):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    user = ["--run-as", pwd.getpwuid(0).pw_name] if os.geteuid() == 0 else []
    listeners = ["--port", port, *(["--websockets", web_port] if web else [])]
    text = command("broker", "init", site, "--name", "127.0.0.1", *listeners, *user)
    start = next(line.strip() for line in text.splitlines() if "-c " in line).split()
    log = tmp_path / "mosquitto.log"
    with launched(log, other=tuple(start)):
        eventually(lambda: log.exists() and "running" in log.read_text())
        token = command("device", "add", "club", "--dir", site, *web).split()[-1]
        masks = masking(publics=[process.key("--enrol", token)], values=50_000)
        with process.start() as helper, asking(BrokerFolder(site).for_aggregator, tmp_path) as asker:
            process.connected()
            assert ("wss://" if web else "mqtts://") in process.log.read_text()
            check(asker, masks, masks.request(*THREE)[0], THREE)
            assert asker.until_state(lambda state: state.online)
            helper.terminate()
            assert helper.wait(PATIENCE_S) == 0


def test_systemd_hears_that_a_helper_is_ready_works_and_stops(broker, process, systemd, program, tmp_path):
    environment = {**os.environ, "NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "2000000"}
    words = [program, "mask-helper", broker.url, "--name", "club", "--state", str(tmp_path / "club")]
    with (
        process.log.open("wb") as out,
        subprocess.Popen(words, stdout=out, stderr=out, env=environment) as helper,
    ):
        assert systemd.hears() == "READY=1"
        assert [systemd.hears() for _ in range(3)] == ["WATCHDOG=1"] * 3
        helper.send_signal(signal.SIGINT)
        systemd.hears_at_last("STOPPING=1")
        assert helper.wait(PATIENCE_S) == 0


def test_metrics_count_what_was_told_and_refused(broker, process, masking, tmp_path, eventually):
    pytest.importorskip("prometheus_client")
    import re
    from urllib.request import urlopen

    masks = masking(publics=[process.key(broker.url, "--name", "club")])
    with (
        process.start(broker.url, "--name", "club", "--metrics", "127.0.0.1:0"),
        asking(BrokerUrl.parse(broker.url), tmp_path) as asker,
    ):
        check(asker, masks, masks.request(*THREE)[0], THREE)
        assert asker.ask(masks.request("pi-4")[0])[0].refusal
        [url] = re.findall(r"metrics at (\S+)", process.log.read_text())

        def read():
            with urlopen(url) as page:  # noqa: S310 - of the helper on this machine
                lines = page.read().decode().splitlines()
            return dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")

        prefix = "device_runtime_mask_helper_"
        eventually(lambda: float(read()[f"{prefix}waiting"]) == 0)  # counted after the answer is sent
        figures = read()
    counted = {
        name: float(figures[prefix + name]) for name in ("sums_total", "refusals_total", "devices_total")
    }
    assert counted == {"sums_total": 1, "refusals_total": 1, "devices_total": 3}
    assert float(figures[f"{prefix}connected"]) == 1
