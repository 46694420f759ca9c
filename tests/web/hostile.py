"""An aggregator that says what a test wants said, behind a real broker, and a real page that hears it."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest

from device_runtime.broker.security.signing import Signer
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import BrokerOptions, WebSockets
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of
from device_runtime.broker.wire.link import Link, LinkOptions, Received
from device_runtime.broker.wire.link_events import Event
from device_runtime.broker.wire.messages import (
    Base,
    Blob,
    Contribution,
    Get,
    Hello,
    Offer,
    Plan,
    Receipt,
)
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.archive import FolderFiles, pack_files
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.strategies.kinds import registry

from .conftest import Visit
from .serving_pages import Pages

DEVICE = "phone"
ISSUED = 1_800_000_000
KINDS = {"hello": Hello, "plan": Plan, "contribution": Contribution, "get": Get}
PATIENCE_S = 240.0
NOTED = """
self.noted = [];
addEventListener("DOMContentLoaded", () => {
  const notice = document.getElementById("notice");
  const every = { childList: true, characterData: true, subtree: true };
  new MutationObserver(() => self.noted.push(notice.textContent)).observe(notice, every);
});
addEventListener("securitypolicyviolation", ({ blockedURI, violatedDirective }) => {
  self.noted.push(`policy: ${violatedDirective} ${blockedURI}`);
});
"""
"""Every notice that the page shows, and what its policy blocks."""

FILES = {name: bytes(content) for name, content in FolderFiles(shipped_folder("digits-wrn-10-1")).items()}
MANIFEST: dict[str, Any] = json.loads(FILES["manifest.json"])
HONEST = Bundle.open(shipped_folder("digits-wrn-10-1"))


def repacked(files: Mapping[str, bytes] | None = None, **stated: Any) -> bytes:
    """The shipped bundle with other files, whose hashes are stated, and other fields in its manifest."""
    every = {**FILES, **(files or {})}
    manifest = json.loads(FILES["manifest.json"]) | {"seal": ""}
    for entry in (manifest["weights"], *manifest["graphs"].values()):
        blob = blob_of(every[entry["file"]])
        entry["sha256"], entry["bytes"] = blob.sha.hex(), blob.size
    return pack_files(every | {"manifest.json": json.dumps(manifest | stated).encode()})


class Aggregator:
    """Answers hellos with `offer`, sealed by `signer`, and gets by `contents`; `messages`: what came."""

    def __init__(self, url: str, signer: Signer) -> None:
        self.signer = signer
        self.offer: Offer | None = None
        self.contents: dict[bytes, bytes] = {}
        self.messages: list[Any] = []
        self.blocks: Callable[[Get], Iterator[tuple[int, bytes]]] = self._blocks
        self._inbox: SimpleQueue[Event] = SimpleQueue()
        options = LinkOptions(subscriptions=(topics.FROM_DEVICES,))
        self.link = Link(BrokerUrl.parse(url), "aggregator", self._inbox, options)
        self.link.connect()
        threading.Thread(target=self._listen, daemon=True).start()

    def hold(self, content: bytes, instead: bytes | None = None) -> Blob:
        """To be fetched by its hash; what comes then is `instead`, if that is given."""
        blob = blob_of(content)
        self.contents[blob.sha] = content if instead is None else instead
        return blob

    def say(self, leaf: str, payload: bytes) -> None:
        self.link.publish(topics.down(DEVICE, leaf), payload)

    def tell(self, offer: Offer, signer: Signer | None = None) -> None:
        """To the device, now and whenever it says hello."""
        self.offer = offer
        self.say("task", (signer or self.signer).seal(topics.down(DEVICE, "task"), offer, ISSUED))

    def of(self, kind: type[Any], run: str = "") -> list[Any]:
        """What was heard of a kind, of a run or of any."""
        return [
            message
            for message in list(self.messages)
            if isinstance(message, kind) and run in ("", getattr(message, "run", ""))
        ]

    def receipt(self, contribution: Contribution, status: Any = "accepted", reason: str = "") -> None:
        receipt = Receipt(
            boot=contribution.boot,
            seq=contribution.seq,
            round=contribution.round,
            status=status,
            reason=reason,
        )
        self.say("receipt", messages.encode(receipt))

    def _listen(self) -> None:
        while True:
            event = self._inbox.get()
            if not isinstance(event, Received):
                continue
            leaf = topics.parse(event.topic).leaf
            if leaf not in KINDS:
                continue
            message = messages.decode(event.payload, KINDS[leaf])
            self.messages.append(message)
            if isinstance(message, Hello) and self.offer is not None:
                self.say("task", self.signer.seal(topics.down(DEVICE, "task"), self.offer, ISSUED))
            elif isinstance(message, Get):
                for index, data in self.blocks(message):
                    self.say(topics.block(message.blob.sha, index), data)

    def _blocks(self, get: Get) -> Iterator[tuple[int, bytes]]:
        content = self.contents.get(get.blob.sha)
        if content is None:
            yield -1, b""
            return
        for index in get.blocks:
            yield index, content[index * BLOCK : min((index + 1) * BLOCK, get.blob.size)]


class AttackedPage:
    """A page that is a device, enrolled with the aggregator's key, and the aggregator."""

    def __init__(self, visit: Visit, aggregator: Aggregator) -> None:
        self.visit, self.aggregator = visit, aggregator
        self.bundle = aggregator.hold(HONEST.packed())
        self.weights = aggregator.hold(tensors.encode(HONEST.weights()))
        self.base = Base(checkpoint=(self.weights,), sha=self.weights.sha)
        self._runs = 0
        self._mark = 0

    @property
    def page(self) -> Any:
        return self.visit.page

    def offered(self, **more: Any) -> Offer:
        """The first round of a new run, as an honest aggregator offers it; `more` stands over its fields."""
        self._runs += 1
        usual: dict[str, Any] = {
            "task": "digits",
            "run": f"run-{self._runs}",
            "round": 1,
            "seed": 5,
            "deadline_s": 60.0,
            "remaining_s": 60.0,
            "bundle": self.bundle,
            "base": self.base,
            "kinds": (registry.write(registry.make("class-means")),),
        }
        return Offer(**(usual | more))

    def join(self, samples: Path) -> None:
        self.page.fill("#name", DEVICE)
        self.page.click("#join button")
        self.page.click("#files summary")
        self.page.set_input_files("#files-input", samples)
        self.page.get_by_text(re.compile(r"^\d+ samples kept")).wait_for()
        self.page.get_by_text("connected", exact=True).wait_for()

    def honest_round(self) -> Contribution:
        """It is served and contributed to, and the page says so."""
        offer = self.offered()
        self.aggregator.tell(offer)
        contribution = self.until(lambda: self.aggregator.of(Contribution, offer.run))[0]
        self.aggregator.receipt(contribution)
        self.page.get_by_text("Round 1: received, and counted").wait_for()
        self.until(lambda: self.page.evaluate("document.getElementById('notice').textContent === ''"))
        return contribution

    def attack(self, offer: Offer, signer: Signer | None = None) -> None:
        self.begin()
        self.aggregator.tell(offer, signer)

    def begin(self) -> None:
        """Of what is noted and heard, what comes from now on counts."""
        self.aggregator.messages.clear()
        self.page.evaluate('document.getElementById("notice").textContent = ""')
        self._mark = self.page.evaluate("self.noted.length")

    def noted(self) -> list[str]:
        lines: list[str] = self.page.evaluate(f"self.noted.slice({self._mark})")
        return [line for line in lines if line]

    def refused(self, words: str) -> str:
        """The line in which the page says so; nothing was trained or sent."""
        line = self.until(lambda: [text for text in self.noted() if re.search(words, text)])[0]
        assert "\n" not in line and len(line) < 400
        assert self.aggregator.of(Contribution) == []
        assert [plan for plan in self.aggregator.of(Plan) if plan.kind] == []
        self.aggregator.offer = None
        return str(line)

    def sound(self) -> None:
        """Nothing that was not foreseen has happened since the page was opened."""
        lines: list[str] = self.page.evaluate("self.noted")
        assert [line[:400] for line in lines if "this is a fault" in line or line.startswith("policy")] == []
        assert [line for line in self.visit.wrong if "Security Policy" in line or "Uncaught" in line] == []
        hosts = ("http://127.0.0.1:", "ws://127.0.0.1:", "blob:http://127.0.0.1:")
        assert all(url.startswith(hosts) for url in self.visit.requests)

    def until(self, condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE_S
        while not (outcome := condition()):
            if time.monotonic() > end:
                state = self.page.inner_text("#now-head + p")
                noted = [line[:300] for line in self.noted()]
                pytest.fail(f"not within {PATIENCE_S} s; noted {noted}, state {state[:300]}")
            time.sleep(0.02)
        return outcome


@contextmanager
def attacked_page(chromium: Any, folder: Path, **config: Any) -> Iterator[AttackedPage]:
    """A page of 360 pixels that has joined, with samples; `config` stands over what its server tells it.

    The broker is amqtt: Mosquitto as Debian builds it sends a few KiB at a time over WebSockets.
    """
    pytest.importorskip("amqtt", reason="needs pip install 'device-runtime[aggregator]'")
    dataset = pytest.importorskip("sklearn.datasets", reason="needs pip install scikit-learn").load_digits()
    samples = folder / "mine.npz"
    np.savez(samples, x=dataset.images[:60].astype(np.uint8), y=dataset.target[:60])
    running = brokers.start("amqtt", BrokerOptions(web=WebSockets()))
    aggregator = Aggregator(running.url, Signer(bytes(range(32))))
    usual = {
        "enrolment": "open",
        "broker": {"url": running.web_url, "user": "", "password": ""},
        "key": aggregator.signer.public.hex(),
        "tasks": [{"name": "digits", "input": MANIFEST["input"], "labels": MANIFEST["labels"]}],
    }
    pages = Pages(usual | config, {}, {})
    visit = Visit(chromium, pages, viewport={"width": 360, "height": 800})
    try:
        visit.context.add_init_script(NOTED)
        visit.open()
        attacked = AttackedPage(visit, aggregator)
        attacked.join(samples)
        yield attacked
        attacked.sound()
    finally:
        visit.context.close()
        pages.shutdown()
        aggregator.link.close()
        running.stop()


def altered(sealed: bytes, **fields: Any) -> bytes:
    """A sealed offer whose words are others, under the signature of those before."""
    read = messages.decode(sealed, messages.Signed)
    offer = messages.decode(read.offer, Offer)
    changed = messages.encode(msgspec.structs.replace(offer, **fields))
    return messages.encode(msgspec.structs.replace(read, offer=changed))
