"""Sends messages and blocks to devices, and counts the bytes of each device."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heappop, heappush

from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.storage.contributions import DeviceTraffic
from device_runtime.broker.security.signing import SessionKey
from device_runtime.broker.wire import compact_round, messages, topics
from device_runtime.broker.wire.blobs import BLOCK, Blobs, block_count
from device_runtime.broker.wire.link import packet_bytes
from device_runtime.broker.wire.messages import Blob, Get, Offer, Receipt
from device_runtime.broker.wire.sum_messages import SumCheck, SumRequest
from device_runtime.broker.wire.transfer import MAX_WINDOW, answer_get

log = logging.getLogger(__name__)


class Outbound:
    """Sends messages to devices and never waits.

    A message for which the link has no room is dropped with a log line, as devices ask or send again. Blocks
    are sent as soon as there is room.
    """

    def __init__(self, ports: Ports, helpers: Collection[str] = ()) -> None:
        """`helpers`: names of mask helpers, whose bytes are not those of devices."""
        self._link = ports.link
        self.traffic = RoundTraffic(ports.mqtt5, helpers)
        self._seal, self._agree = ports.seal, ports.agree
        self._blocks = BlockSender(self._block, ports.clock, ports.backlog)
        self._session_keys: dict[str, SessionKey] = {}
        self._signing: set[str] = set()

    def agree(self, device: str, key: bytes, signs: bool = False) -> None:
        """Agree on a MAC key with a device, by the public key in its hello; empty for none.

        `signs`: the hello was signed, so receipts to the device carry a MAC. Raises MessageError for an
        invalid key.
        """
        self._session_keys.pop(device, None)
        self._signing.discard(device)
        if self._agree and key:
            self._session_keys[device] = self._agree(key)
            if signs:
                self._signing.add(device)

    def is_authentic(self, device: str, run: str, payload: bytes, mac: bytes) -> bool:
        """Whether `mac` is the device's MAC of this compact contribution."""
        session_key = self._session_keys.get(device)
        return session_key is not None and session_key.verifies(mac, topics.up(device, "c"), run, payload)

    def forget(self, device: str) -> None:
        """Forget a device that is no longer known."""
        self.traffic.forget(device)
        self._session_keys.pop(device, None)
        self._signing.discard(device)
        self._blocks.forget(device)

    def go_on(self) -> None:
        """Send waiting blocks while the link has room."""
        self._blocks.go_on()

    def offer(self, device: str, offer: Offer) -> None:
        """Send an offer to one device."""
        topic = topics.down(device, "task")
        self._send((device,), topic, self._seal(topic, offer))

    def ask(self, device: str, get: Get) -> None:
        """Ask a device for blocks of its contribution."""
        self._send((device,), topics.down(device, "get"), messages.encode(get))

    def receipt(self, device: str, receipt: Receipt) -> None:
        """Send a receipt to one device; a MAC follows it if the device signs."""
        topic, payload = topics.down(device, "receipt"), messages.encode(receipt)
        if device in self._signing:
            payload += self._session_keys[device].mac(topic, "", payload)
        self._send((device,), topic, payload)

    def sum_request(self, helper: str, request: SumRequest | SumCheck) -> None:
        """Ask a mask helper for the sum of the masks of some devices, or whether it would tell it."""
        self._send((helper,), topics.down(helper, "sum"), messages.encode(request))

    def blocks(self, device: str, get: Get, blobs: Blobs) -> None:
        """Send the blocks that a device asked for, or say that the aggregator does not have the blob."""
        self._blocks.ask(device, get, blobs)

    def _block(self, device: str, blob: Blob, index: int, data: bytes) -> bool:
        topic = topics.down(device, topics.block(blob.sha, index))
        sent = self._link.publish(topic, data)
        if sent:
            self.traffic.down((device,), topic, data)
        return sent

    def broadcast(self, offer: Offer, online: Iterable[str]) -> None:
        """Publish the retained offer; its bytes count for every device that is online."""
        topic = topics.offer(offer.task)
        payload = self._seal(topic, offer)
        if self._link.publish(topic, payload, retain=True):
            self.traffic.down(online, topic, payload)
        else:
            log.warning("the link has no room: the offer of round %d is not sent", offer.round)

    def next(self, offer: Offer, compact_offer: compact_round.CompactOffer, online: Iterable[str]) -> None:
        """Send a compact offer to devices that have the offer of the round before; it is not retained.

        Where the aggregator has a key, devices accept a broadcast only with a signature, which would be
        longer than the message. Each device then gets the message with a MAC or, if it has no MAC key, the
        whole offer.
        """
        payload = compact_round.encode_offer(compact_offer)
        if self._agree is None:
            self._send(online, topics.offer(offer.task), payload)
            return
        for device in sorted(online):
            if session_key := self._session_keys.get(device):
                topic = topics.down(device, "n")
                mac = session_key.mac(topic, offer.run, payload)
                self._send((device,), topic, compact_round.with_mac(payload, mac))
            else:
                self.offer(device, offer)

    def clear_state(self, device: str) -> None:
        """Clear the retained presence of a device that is gone."""
        self.clear(topics.up(device, "state"))

    def clear(self, topic: str) -> None:
        """Clear the retained message of a topic."""
        self._link.publish(topic, b"", retain=True)

    def _send(self, devices: Iterable[str], topic: str, payload: bytes) -> None:
        if self._link.publish(topic, payload):
            self.traffic.down(devices, topic, payload)
        else:
            log.warning("the link has no room: the message on %s is not sent", topic)


class RoundTraffic:
    """The bytes of each device in the open round, exactly as MQTT PUBLISH packets.

    A message that reaches no known device is not counted, nor those of `others`.
    """

    def __init__(self, mqtt5: bool = False, others: Collection[str] = ()) -> None:
        self._mqtt5, self._others = mqtt5, frozenset(others)
        self._moved: dict[str, DeviceTraffic] = {}

    def begin(self, moved: Mapping[str, DeviceTraffic]) -> None:
        """Start a round with these figures: none, or those from before a restart."""
        self._moved = dict(moved)

    def up(self, device: str, topic: str, payload: bytes) -> None:
        """Count a message from a device."""
        self._add(device, DeviceTraffic(up=packet_bytes(topic, payload, mqtt5=self._mqtt5)))

    def down(self, devices: Iterable[str], topic: str, payload: bytes) -> None:
        """Count a message to each of these devices."""
        size = packet_bytes(topic, payload, mqtt5=self._mqtt5)
        for device in devices:
            self._add(device, DeviceTraffic(down=size))

    def forget(self, device: str) -> None:
        """Forget a device that is no longer known."""
        self._moved.pop(device, None)

    def of(self, device: str) -> DeviceTraffic:
        return self._moved.get(device, DeviceTraffic())

    def all(self) -> dict[str, DeviceTraffic]:
        """A copy of every device's figures."""
        return dict(self._moved)

    def _add(self, device: str, more: DeviceTraffic) -> None:
        if device in self._others:
            return
        now = self.of(device)
        self._moved[device] = DeviceTraffic(now.up + more.up, now.down + more.down)


LINK_BACKLOG_BYTES = 16 * 1024**2
"""No block is sent while at least this many bytes wait in the link."""
MOST_BLOCKS_OF_DEVICE = 512
"""The most blocks of one device that wait; the device asks again for any beyond that."""
MOST_WAITING_BLOCKS = 1_000_000
"""The most blocks of all devices that wait."""
FREE_TIMES, FREE_EXTRA_BYTES = 2, 16 * BLOCK
"""A device gets FREE_TIMES the size of a blob, plus FREE_EXTRA_BYTES, without waiting."""
REFILL_S = 60.0
"""Seconds after which it gets as much again."""
MOST_BUDGETS = 200_000
"""The most pairs of device and blob for which the bytes sent are remembered."""

SendBlock = Callable[[str, Blob, int, bytes], bool]
"""Sends a block to a device: blob, number, bytes. Returns False when the link has no room."""


class BlockSender:
    """Sends the blocks that devices ask for, one to each device in turn, while the link has room.

    A waiting block is kept as a number, not as its 64 KiB. A device that asks for the same blob again and
    again has to wait, but no request is dropped for that. `clock` gives seconds, `backlog` the bytes in the
    link.
    """

    def __init__(self, send: SendBlock, clock: Callable[[], float], backlog: Callable[[], int]) -> None:
        self._send, self._clock, self._backlog = send, clock, backlog
        self._requests: dict[str, dict[tuple[Blob, int], Blobs]] = {}
        self._count = 0
        self._turn: OrderedDict[str, None] = OrderedDict()  # devices to send to, the next first
        self._resumes_at: dict[str, float] = {}  # until when a device must wait, as in `_due`
        self._due: list[tuple[float, str]] = []
        self._left: OrderedDict[tuple[str, Blob], tuple[float, float]] = OrderedDict()  # bytes, as of when

    def ask(self, device: str, get: Get, blobs: Blobs) -> None:
        """Send the existing blocks of a Get, at most MAX_WINDOW, or say that the blob does not exist."""
        count = block_count(get.blob)
        indexes = [index for index in dict.fromkeys(get.blocks) if 0 <= index < count]
        for index in indexes[:MAX_WINDOW]:
            requests = self._requests.setdefault(device, {})
            if (
                len(requests) < MOST_BLOCKS_OF_DEVICE
                and self._count < MOST_WAITING_BLOCKS
                and (get.blob, index) not in requests
            ):
                requests[get.blob, index] = blobs
                self._count += 1
        if device in self._requests and device not in self._resumes_at:
            self._turn[device] = None
        self.go_on()

    def forget(self, device: str) -> None:
        """Forget a device that is no longer known."""
        self._count -= len(self._requests.pop(device, ()))
        self._turn.pop(device, None)
        self._resumes_at.pop(device, None)

    def go_on(self) -> None:
        """Send while the link has room; to be called several times a second."""
        now = self._clock()
        while self._due and self._due[0][0] <= now:
            until, device = heappop(self._due)
            if self._resumes_at.get(device) == until:
                del self._resumes_at[device]
                self._turn[device] = None
        while self._turn and self._backlog() < LINK_BACKLOG_BYTES:
            device, _ = self._turn.popitem(last=False)
            if not self._requests.get(device):
                self._requests.pop(device, None)
            elif wait_s := self._send_block(device, now):
                self._resumes_at[device] = now + wait_s
                heappush(self._due, (now + wait_s, device))
            else:
                self._turn[device] = None

    def _send_block(self, device: str, now: float) -> float:
        """Send one block to a device, or return the seconds that it must wait for it."""
        requests = self._requests[device]
        (blob, index), blobs = next(iter(requests.items()))
        if wait_s := self._wait_s(device, blob, now):
            return wait_s
        for number, data in answer_get(blobs, Get(blob=blob, blocks=(index,))):
            if not self._send(device, blob, number, data):
                return 1.0
            here = number == index
            gone = [(blob, index)] if here else [block for block in requests if block[0] == blob]
            for block in gone:
                del requests[block]
            self._count -= len(gone)
            if here:
                left, then = self._left[device, blob]
                self._left[device, blob] = (left - len(data), then)
        return 0.0

    def _wait_s(self, device: str, blob: Blob, now: float) -> float:
        """Seconds until a device may get another block of a blob; 0 for at once."""
        most = float(FREE_TIMES * blob.size + FREE_EXTRA_BYTES)
        left, then = self._left.pop((device, blob), (most, now))
        left = min(most, left + max(0.0, now - then) * most / REFILL_S)
        self._left[device, blob] = (left, now)
        if len(self._left) > MOST_BUDGETS:
            self._left.popitem(last=False)
        return 0.0 if left >= BLOCK else (BLOCK - left) * REFILL_S / most
