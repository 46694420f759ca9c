"""Masked updates of each kind: what helpers and the aggregator get, and what their sum opens to."""

from dataclasses import replace
from math import isnan

import msgspec
import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire.messages import Base, Blob, HelperKey, Masks, Offer
from device_runtime.device.masking.masked_update import SECRET_BYTES, UpdateMasker
from device_runtime.device.masking.upload_terms import upload_terms
from device_runtime.device.training.one_task import RoundInputs
from device_runtime.strategies.errors import KindError, MaskError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import Summable
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Run, Update
from device_runtime.strategies.interface.kind import ClassStatistics, variant_named
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal
from device_runtime.strategies.masking.sums import SummedGroup
from device_runtime.strategies.statistics import class_statistics, kind_statistics

HELPERS = (b"\x01" * SECRET_BYTES, b"\x02" * SECRET_BYTES)
MASKS = Masks(
    helpers=tuple(HelperKey(f"helper-{n}", crypto_scalarmult_base(key)) for n, key in enumerate(HELPERS)),
    min_group=3,
    capacity=64,
    most_weight=100,
)
SAMPLES = (10, 30, 60)
BLOB = Blob(sha=b"\0" * 32, size=1)
SETTINGS = {
    "peft": {"tunable": "head"},
    "entropy-subset": {"shares": [0.5, 0.25]},
    "few-shot": {"join_base": True},
    "zeroth-order": {"num_z": 3},
}
VARIANTS = {"entropy-subset": "25%", "peft": "head"}


def offer_of(strategy, masks=MASKS, number=4):
    return Offer(
        task="t", run="r", round=number, seed=5, deadline_s=60.0, remaining_s=60.0, bundle=BLOB,
        base=Base(checkpoint=(BLOB,), sha=BLOB.sha), kinds=(registry.write(strategy),), masks=masks,
    )  # fmt: skip


def masked(update, inputs, manifest, device, secret):
    """The update as the device sends it."""
    return UpdateMasker(inputs.offer, device, secret).masked(update, manifest, inputs.base)


def opened(strategy, manifest, inputs, updates):
    """The sum of the masked updates of devices a, b, ..., as two helpers and an aggregator open it."""
    masks = inputs.offer.masks
    layout = layout_of(strategy, manifest, inputs.base, masks)
    total, mask = (MaskedVector.zeros(layout.values, layout.numbers) for _ in range(2))
    for name, update in zip("abcdef", updates, strict=False):
        sent = masked(update, inputs, manifest, name, name.encode() * SECRET_BYTES)
        total.add(MaskedVector.from_bytes(sent.body, layout.values, layout.numbers))
        purpose = MaskPurpose("t", "r", 4, update.kind, update.variant, name, masks.min_group)
        mask.add_masks([unseal(secret, sent.mask, at, purpose) for at, secret in enumerate(HELPERS)])
    total.subtract(mask)
    weights = [strategy.weight(update) for update in updates]
    samples = sum(update.num_examples for update in updates)
    group = SummedGroup(len(updates), sum(weights) / masks.most_weight, samples, masks.most_weight)
    return sums.read(total, layout, group, strategy)


def update_of(strategy, manifest, base, samples, rng):
    """An update such as a device trains: a change of weights, scalars, or sums by class."""
    if strategy.name == "class-means":
        counts = rng.multinomial(samples, np.full(len(manifest.labels), 1 / len(manifest.labels)))
        features = counts[:, None] * rng.normal(0, 1, (len(counts), manifest.head.features))
        tensors = {"sums": features.astype(np.float32), "counts": counts.astype(np.int32)}
    else:
        tensors = {
            spec.name: (base.get(spec.name, 0) + rng.normal(0, 0.05, spec.shape)).astype(np.float32)
            for spec in strategy.expected(manifest)
        }
    return Update(strategy.name, tensors, samples, samples / 10, strategy.variant)


@pytest.fixture
def manifest(bundle):
    """With a set for the kind `sparse`, which is that of `mid`."""
    usual = bundle.manifest
    parameters = tuple(
        msgspec.structs.replace(parameter, sets=(*parameter.sets, "sparse"))
        if "mid" in parameter.sets
        else parameter
        for parameter in usual.parameters
    )
    return msgspec.structs.replace(usual, parameters=parameters, sets={**usual.sets, "sparse": {}})


ADDING_UP = [name for name, kind in registry.kinds().items() if issubclass(kind, Summable) and kind.adds_up]


@pytest.mark.parametrize("name", ADDING_UP)
def test_masked_updates_of_a_kind_that_adds_up_open_to_what_their_clear_updates_fold_to(
    name, bundle, manifest
):
    strategy = variant_named(registry.make(name, SETTINGS.get(name, {})), VARIANTS.get(name, ""))
    base, rng = bundle.weights(), np.random.default_rng(1)
    updates = [update_of(strategy, manifest, base, samples, rng) for samples in SAMPLES]
    inputs = RoundInputs(offer_of(registry.make(name, SETTINGS.get(name, {}))), "", base, NO_TENSORS)
    total = opened(strategy, manifest, inputs, updates).update
    assert (total.kind, total.variant, total.num_examples) == (name, VARIANTS.get(name, ""), 100)
    weights = [1.0 if capabilities.summed(strategy) else strategy.weight(update) for update in updates]
    clear = {}
    for tensor in updates[0].tensors:
        parts = np.stack([update.tensors[tensor].astype(np.float64) for update in updates])
        clear[tensor] = np.tensordot(weights, parts, 1) / (
            1 if tensor in capabilities.summed(strategy) else sum(weights)
        )
    clear = np.concatenate([clear[tensor].ravel() for tensor in sorted(clear)])
    read = np.concatenate([total.tensors[tensor].ravel() for tensor in sorted(total.tensors)])
    step = 2.0**-13 if name == "zeroth-order" else 0.0  # of its fixed point, which has room for 1024
    assert np.linalg.norm(read - clear) < 1e-6 * np.linalg.norm(clear) + step
    loss = np.average([update.train_loss for update in updates], weights=list(map(strategy.weight, updates)))
    assert total.train_loss == pytest.approx(loss)


def test_class_statistics_open_to_their_sum_though_one_device_sends_fewer(model, digits):
    request = ClassStatistics(samples=0)
    strategy = kind_statistics.with_class_statistics(
        registry.make("few-shot", {"epochs": 1, "join_base": True}), request
    )
    forms = (
        strategy,
        kind_statistics.with_most_classes(kind_statistics.without_moments(strategy), 4),
        strategy,
    )
    updates = [
        kind_statistics.train(
            form,
            model,
            LocalData(digits.x[60 * n : 60 * n + 60], digits.y[60 * n : 60 * n + 60]),
            Run(77, f"pi-{n}", clock=lambda: 0.0, upload_at=1.0),
        )
        for n, form in enumerate(forms)
    ]
    inputs = RoundInputs(offer_of(strategy), "", model.weights, NO_TENSORS)
    total = opened(strategy, model.manifest, inputs, updates)
    shape = class_statistics.shape_of(request, model.manifest)
    clear = class_statistics.Statistics.none(*shape)
    for update in updates:
        clear = clear.add(
            class_statistics.decode(class_statistics.split_statistics(update.tensors)[1], shape)
        )
    assert total.statistics.sums.counts.tolist() == clear.sums.counts.tolist()
    assert clear.sums.counts.sum() > clear.moment_sums.counts.sum() > 100  # the second device sent fewer
    np.testing.assert_allclose(total.statistics.sums.sums, clear.sums.sums, atol=1e-6)
    np.testing.assert_allclose(total.statistics.moments, clear.moments, atol=1e-4)


def test_the_content_has_the_size_that_the_choice_counts_with_and_no_two_are_alike(bundle):
    strategy, base = FewShot(join_base=True), bundle.weights()
    update = update_of(strategy, bundle.manifest, base, 10, np.random.default_rng(1))
    inputs = RoundInputs(offer_of(strategy), "", base, NO_TENSORS)
    first, other = (
        masked(update, inputs, bundle.manifest, "a", secret * SECRET_BYTES) for secret in (b"1", b"2")
    )
    counted = upload_terms(MASKS, (strategy,), lambda _: bundle.manifest).bytes_up(strategy)
    assert counted == len(first.body) + 120  # with the message around it
    assert len(first.body) == 4 * (650 + 4) + 8 * 2  # the head of 64 features and 10 classes; two sums
    different = np.frombuffer(first.body, np.uint8) != np.frombuffer(other.body, np.uint8)
    assert different.mean() > 0.98  # all but 1 of 256 by chance
    assert first.mask.key != other.mask.key
    assert masked(update, inputs, bundle.manifest, "a", b"1" * SECRET_BYTES) == first


def test_a_mask_opens_only_for_the_round_kind_and_device_it_was_made_for(bundle):
    strategy, base = FewShot(join_base=True), bundle.weights()
    update = update_of(strategy, bundle.manifest, base, 10, np.random.default_rng(1))
    sent = masked(
        update, RoundInputs(offer_of(strategy), "", base, NO_TENSORS), bundle.manifest, "a", HELPERS[0]
    )
    right = MaskPurpose("t", "r", 4, "few-shot", "", "a", 3)
    assert len(unseal(HELPERS[0], sent.mask, 0, right)) == SECRET_BYTES
    for wrong in (
        replace(right, round=5), replace(right, device="b"), replace(right, min_group=2),
        replace(right, kind="full"), replace(right, run="other"), replace(right, noise_milli=1),
    ):  # fmt: skip
        with pytest.raises(MaskError, match="not for this helper"):
            unseal(HELPERS[0], sent.mask, 0, wrong)


def test_with_noise_changes_are_clipped_nothing_else_is_sent_and_the_mask_is_bound_to_both(bundle):
    masks = msgspec.structs.replace(MASKS, noise_milli=1000, clip_milli=100)
    strategy, base = FewShot(join_base=True), bundle.weights()
    update = update_of(strategy, bundle.manifest, base, 100, np.random.default_rng(1))
    inputs = RoundInputs(offer_of(strategy, masks), "", base, NO_TENSORS)
    sent = masked(update, inputs, bundle.manifest, "a", b"a" * SECRET_BYTES)
    layout = layout_of(strategy, bundle.manifest, base, masks)
    assert sent.shortened and len(sent.body) == 4 * layout.values
    purpose = MaskPurpose("t", "r", 4, "few-shot", "", "a", 3, 1000, 100, layout.exponents)
    vector, mask = MaskedVector.from_bytes(sent.body, layout.values, 0), MaskedVector.zeros(layout.values, 0)
    mask.add_masks([unseal(secret, sent.mask, at, purpose) for at, secret in enumerate(HELPERS)])
    vector.subtract(mask)
    read = sums.read(vector, layout, SummedGroup(1, 1.0, 100, 100), strategy).update
    length = np.sqrt(sum(np.square(value - base[name]).sum() for name, value in read.tensors.items()))
    assert length == pytest.approx(0.1, rel=1e-4)
    assert isnan(read.train_loss)


@pytest.mark.parametrize("name", [*sorted(registry.kinds().keys() - {*ADDING_UP}), "few-shot"])
def test_a_kind_that_does_not_add_up_is_not_masked(name, bundle):
    strategy = registry.make(name)
    update = Update(name, {}, 10, 0.5)
    inputs = RoundInputs(offer_of(strategy), "", bundle.weights(), NO_TENSORS)
    with pytest.raises(
        MaskError, match="^cannot be masked: (its updates do not fold as a sum|the mean of its classifiers)"
    ):
        masked(update, inputs, bundle.manifest, "a", HELPERS[0])


def test_an_update_that_the_offer_does_not_ask_for_is_not_masked(bundle):
    inputs = RoundInputs(offer_of(FewShot(join_base=True)), "", bundle.weights(), NO_TENSORS)
    with pytest.raises(KindError, match="the offer asks for no full"):
        masked(Update("full", {}, 10, 0.5), inputs, bundle.manifest, "a", HELPERS[0])
    clear = replace(inputs, offer=msgspec.structs.replace(inputs.offer, masks=None))
    with pytest.raises(ValueError, match="round 4 of 't' has no masks"):
        masked(Update("few-shot", {}, 10, 0.5), clear, bundle.manifest, "a", HELPERS[0])
