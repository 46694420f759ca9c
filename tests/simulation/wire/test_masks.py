"""Real devices on a simulated network mask their updates; the test helps to open the sum, and aggregates."""

import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import (
    Base,
    Contribution,
    Get,
    Hello,
    HelperKey,
    Masks,
    Offer,
    Receipt,
    decode,
    encode,
)
from device_runtime.models.bundles import tensors
from device_runtime.profiles.device import Emulation
from device_runtime.simulation.rounds.simulation_loop import VirtualTimeQueue
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal
from device_runtime.strategies.masking.sums import SummedGroup
from tests.simulation.wire.broker import PacketLog, VirtualBroker
from tests.simulation.wire.device import PlacedDevice, VirtualDevice
from tests.simulation.wire.link import ClientEnd, ClientIdentity, LinkCapacity, VirtualLink

SECRETS = (b"\x07" * 32, b"\x08" * 32)
HELPERS = tuple(HelperKey(f"helper-{n}", crypto_scalarmult_base(key)) for n, key in enumerate(SECRETS))
MASKS = Masks(helpers=HELPERS, min_group=3, capacity=64, most_weight=80)
KIND = FewShot(shots=2, epochs=1, join_base=True)
NAMES = ("pi-a", "pi-b", "pi-c")


class OneRound:
    """Offers one round to each hello, answers gets, keeps contributions; receipts only if it `answers`."""

    def __init__(self, broker, log, bundle, masks):
        packed, weights = bundle.packed(), tensors.encode(bundle.weights())
        self.contents = {blob_of(data).sha: data for data in (packed, weights)}
        self.offer = Offer(
            task="t", run="r", round=1, seed=5, deadline_s=60.0, remaining_s=60.0, bundle=blob_of(packed),
            base=Base(checkpoint=(blob_of(weights),), sha=blob_of(weights).sha),
            kinds=(registry.write(KIND),), masks=masks,
        )  # fmt: skip
        self.answers, self.updates = True, []
        who = ClientIdentity("aggregator", (topics.FROM_DEVICES,))
        self.link = VirtualLink(
            who, LinkCapacity(), broker, ClientEnd(self.take, lambda: broker.agenda.now), log
        )
        self.link.connect()

    def take(self, event):
        if not isinstance(event, Received):
            return
        address = topics.parse(event.topic)
        if address.leaf == "hello":
            assert decode(event.payload, Hello).boot
            self.say(address.device, "task", self.offer)
        elif address.leaf == "get":
            get = decode(event.payload, Get)
            for index in get.blocks:
                data = self.contents[get.blob.sha][index * BLOCK : (index + 1) * BLOCK]
                self.link.publish(topics.down(address.device, topics.block(get.blob.sha, index)), data)
        elif address.leaf == "contribution":
            update = decode(event.payload, Contribution)
            self.updates.append((address.device, update))
            if self.answers:
                self.say(
                    address.device,
                    "receipt",
                    Receipt(boot=update.boot, seq=update.seq, round=1, status="accepted"),
                )

    def say(self, device, leaf, message):
        self.link.publish(topics.down(device, leaf), encode(message))


@pytest.fixture
def fleet(tmp_path, digits_in, bundle):
    """Makes an aggregator and three devices with other samples each, on one agenda."""

    def make(name, masks=MASKS, seed=1):
        agenda, log = VirtualTimeQueue(), PacketLog()
        broker = VirtualBroker(agenda)
        aggregator, devices = OneRound(broker, log, bundle, masks), {}
        for number, device in enumerate(NAMES):
            data = digits_in(tmp_path / f"{device}.npz", slice(60 * number, 60 * number + 20 * number + 40))
            folder = tmp_path / name / device
            placed = PlacedDevice(device, number, Emulation.of("pi-5").profile, data, folder, LinkCapacity())
            devices[device] = VirtualDevice(placed, broker, log, seed)
            devices[device].start()
        return agenda, aggregator, devices

    return make


def go(agenda, until_s):
    while agenda.now < until_s and agenda.step():
        pass


def test_the_masked_updates_of_three_devices_open_to_the_mean_of_their_clear_ones(fleet, bundle):
    agenda, masked, _ = fleet("masked")
    go(agenda, 30.0)
    agenda, clear, _ = fleet("clear", masks=None)
    go(agenda, 30.0)
    base, sent = bundle.weights(), dict(masked.updates)
    assert sent.keys() == dict(clear.updates).keys() == set(NAMES)
    layout = layout_of(KIND, bundle.manifest, base, MASKS)
    total, mask = (MaskedVector.zeros(layout.values, layout.numbers) for _ in range(2))
    for name, update in sent.items():
        total.add(MaskedVector.from_bytes(update.body, layout.values, layout.numbers))
        purpose = MaskPurpose("t", "r", 1, update.kind, update.form, name, MASKS.min_group)
        mask.add_masks([unseal(secret, update.mask, at, purpose) for at, secret in enumerate(SECRETS)])
    total.subtract(mask)
    samples = [sent[name].num_examples for name in NAMES]
    assert samples == [40, 60, 80]
    opened = sums.read(total, layout, SummedGroup(3, sum(samples) / 80, sum(samples), 80), KIND)
    for name, value in opened.update.tensors.items():
        parts = [tensors.decode(dict(clear.updates)[device].body)[name] for device in NAMES]
        np.testing.assert_allclose(value, np.average(parts, axis=0, weights=samples), atol=1e-6)


def test_a_device_that_loses_its_power_after_training_sends_the_same_masked_bytes_again(fleet):
    agenda, aggregator, devices = fleet("crash")
    aggregator.answers = False
    go(agenda, 10.0)
    before = dict(aggregator.updates)
    aggregator.updates.clear()
    aggregator.answers = True
    devices["pi-b"].crash()
    devices["pi-b"].start()
    go(agenda, 30.0)
    again = dict(aggregator.updates)["pi-b"]
    assert (again.body, again.mask) == (before["pi-b"].body, before["pi-b"].mask)
    assert again.boot != before["pi-b"].boot


def test_a_run_repeats_its_masks_by_its_seed(fleet):
    bodies = []
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        agenda, aggregator, _ = fleet(name, seed=seed)
        go(agenda, 30.0)
        bodies.append({device: update.body for device, update in aggregator.updates})
    assert bodies[0] == bodies[1]
    assert not {*bodies[0].values()} & {*bodies[2].values()}
