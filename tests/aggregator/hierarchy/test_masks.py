"""A site whose aggregator above asks for masked updates: it masks what it forwards, as a device does."""

import argparse
from math import isnan

import msgspec
import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire import compact_round, messages, topics
from device_runtime.broker.wire.messages import Contribution, HelperKey, Masks, Plan
from device_runtime.cli.on_device.policy_options import masks_allowed
from device_runtime.cli.operator import edge
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.strategies.interface.device_half import LocalData, Run
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal
from device_runtime.strategies.masking.sums import SummedGroup
from device_runtime.strategies.statistics import class_statistics, kind_statistics

HELPER = b"\x07" * 32
MASKS = Masks(
    helpers=(HelperKey("club", crypto_scalarmult_base(HELPER)),), min_group=2, capacity=64, most_weight=200
)
FULL = KindSettings(name="full", settings={"epochs": 1, "lr": 0.05, "batch": 16})
SCALARS = KindSettings(name="zeroth-order", settings={"num_z": 2})
MEANS = KindSettings(name="class-means", settings={"head": "trained"})


def masking(h, masks=MASKS):
    """The aggregator above, whose offers ask for masked updates."""
    publish = h.publish

    def with_masks(topic, payload, retain=False):
        is_offer = topics.is_offer(topic) or topic == topics.down("site", "task")
        if is_offer and not compact_round.is_compact_offer(payload):
            offer = messages.offer_in(payload)
            payload = messages.encode(msgspec.structs.replace(offer, masks=masks))
        return publish(topic, payload, retain)

    h.publish = with_masks
    return h


@pytest.fixture
def contributes(bundle, digits):
    """Devices a and b of a site send what they train from its first base."""
    model = OnnxModel(bundle)

    def contribute(h, kinds):
        for device, (kind, part) in kinds.items():
            strategy = next(entry.strategy for entry in h.task.kinds if entry.name == kind)
            data = LocalData(digits.x[part], digits.y[part])
            run = Run(h.offer.seed, device, clock=lambda: 0.0, upload_at=1.0, round=1)
            model.load(h.service.rounds.weights(1))
            update = kind_statistics.train(strategy, model, data, run)
            receipt = h.contribute(device, kind, update.tensors, update.num_examples)
            assert receipt.status == "accepted", receipt.reason
        return h.go()

    return contribute


def content(h, sent):
    """The content that the site sent, inline or in blocks; or has, where the aggregator asked for none."""
    addresses = [(topics.parse(topic), payload) for topic, payload in h.heard_above]
    blocks = {
        a.index: data for a, data in addresses if sent.blob and a.leaf == "block" and a.sha == sent.blob.sha
    }
    if blocks:
        return b"".join(blocks[index] for index in sorted(blocks))
    return sent.body or h.edge.agent.runner.blobs.get(sent.blob)


def opened(h, kind):
    """The only masked contribution that the site sent, opened."""
    [sent] = h.said_above("contribution", Contribution)
    strategy = next(entry.strategy for entry in h.service.rounds.task.kinds if entry.name == kind)
    base, manifest = h.service.rounds.weights(1), h.service.rounds.manifest
    layout = layout_of(strategy, manifest, base, MASKS)
    vector = MaskedVector.from_bytes(content(h, sent), layout.values, layout.numbers)
    mask = MaskedVector.zeros(layout.values, layout.numbers)
    purpose = MaskPurpose(sent.task, sent.run, 1, kind, sent.form, "site", MASKS.min_group)
    mask.add_masks([unseal(HELPER, sent.mask, 0, purpose)])
    vector.subtract(mask)
    share = sums.weight_share(sent.num_examples, MASKS.most_weight)
    assert isnan(sent.metrics.train_loss)
    return sums.read(vector, layout, SummedGroup(1, share, sent.num_examples, 200), strategy)


def in_the_clear(h):
    [sent] = h.said_above("contribution", Contribution)
    assert sent.mask is None
    return class_statistics.split_statistics(tensors.decode(content(h, sent)))


@pytest.mark.parametrize("kind", ["full", "zeroth-order"])
def test_what_a_site_forwards_masked_opens_to_what_it_forwards_in_the_clear(levels, contributes, kind):
    devices = {"a": (kind, slice(0, 40)), "b": (kind, slice(40, 100))}
    offered = FULL if kind == "full" else SCALARS
    clear, masked = (
        contributes(h.go().join("a", "b"), devices) for h in (levels(offered), masking(levels(offered)))
    )
    total, (expected, _) = opened(masked, kind), in_the_clear(clear)
    assert total.update.num_examples == 100
    for name, value in expected.items():
        np.testing.assert_allclose(
            total.update.tensors[name], value, atol=1e-6 if kind == "full" else 2.0**-12
        )


@pytest.mark.parametrize(
    ("kinds", "sent"), [((FULL,), ("full", "full")), ((SCALARS, MEANS), ("zeroth-order", "class-means"))]
)
def test_class_statistics_of_a_site_s_devices_are_in_the_masked_sum(levels, contributes, kinds, sent):
    task = {"head": "closed-form", "statistics": ClassStatistics(smallest_count=1)}
    devices = {"a": (sent[0], slice(0, 90)), "b": (sent[1], slice(90, 150))}
    clear, masked = (
        contributes(h.go().join("a", "b"), devices)
        for h in (levels(*kinds, **task), masking(levels(*kinds, **task)))
    )
    _, statistics = in_the_clear(clear)
    statistics_ = opened(masked, sent[0]).statistics
    expected = class_statistics.decode(statistics, statistics_.sums.sums.shape)
    assert (
        statistics_.sums.counts.tolist() == expected.sums.counts.tolist()
        and statistics_.sums.counts.sum() > 100
    )
    np.testing.assert_allclose(statistics_.sums.sums, expected.sums.sums, atol=1e-6)
    np.testing.assert_allclose(statistics_.moments, expected.moments, atol=1e-4)


def test_a_site_s_own_rounds_to_its_devices_are_in_the_clear(levels, contributes):
    h = masking(levels(FULL)).go().join("a", "b")
    assert h.edge.agent.runner.state.open is not None
    assert h.offer.round == 1 and h.offer.masks is None


@pytest.mark.parametrize(
    ("rules", "masks", "why"),
    [
        (["--only-masked"], None, "the owner allows masked ones only"),
        (["--only-masked", "--mask-helpers", str(MASKS.helpers[0])], MASKS, ""),
        (["--mask-helpers", f"other={'ab' * 32}"], MASKS, "the owner allows other=abab"),
    ],
)
def test_the_owner_of_a_site_limits_it_to_masked_rounds_and_their_helpers(levels, rules, masks, why):
    parser = argparse.ArgumentParser()
    edge.add_arguments(parser)
    h = levels(FULL)
    h = masking(h, masks) if masks else h
    h.allowed = masks_allowed(parser.parse_args(["mqtt://127.0.0.1", *rules]))
    h.kill()
    h.join("a", "b")
    plans = h.said_above("plan", Plan)
    assert (why in plans[-1].reasons[0]) if why else not plans
    assert bool(h.offer.kinds) != bool(why)


def test_a_site_sits_out_a_round_that_it_cannot_mask(levels):
    noise = msgspec.structs.replace(MASKS, noise_milli=1000, clip_milli=1000)
    task = {"head": "closed-form", "statistics": ClassStatistics()}
    h = masking(levels(FULL, **task), noise).go().join("a", "b")
    [plan] = h.said_above("plan", Plan)
    assert (plan.kind, plan.reasons) == (
        "", ("full sends class statistics, to which central noise is not added",),
    )  # fmt: skip
