"""A device in rounds with masks: what it sends, keeps and says, and what its owner lets it do."""

from dataclasses import replace
from functools import partial
from math import isnan

import msgspec
import numpy as np
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire.link import Connected
from device_runtime.broker.wire.messages import Contribution, Get, HelperKey, Masks, Plan, encode
from device_runtime.device.agent.agent import Agent
from device_runtime.device.backend.in_process import SHORTENED, InProcess
from device_runtime.device.policy.rules import AllowList
from device_runtime.device.training.settings import Settings
from device_runtime.models.bundles import tensors
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.attention_transfer import AttentionTransfer
from device_runtime.strategies.kinds.class_means import ClassMeans
from device_runtime.strategies.kinds.few_shot import FewShot
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.masking import sums
from device_runtime.strategies.masking.layout import LEAST_BOUND, layout_of
from device_runtime.strategies.masking.masks import MaskedVector
from device_runtime.strategies.masking.seeds import MaskPurpose, unseal
from device_runtime.strategies.masking.sums import SummedGroup

HELPER, SECRET = b"\x07" * 32, b"\x55" * 32
KEY = HelperKey("club", crypto_scalarmult_base(HELPER))
MASKS = Masks(helpers=(KEY,), min_group=2, capacity=64, most_weight=40)
FEW = FewShot(shots=2, epochs=1, join_base=True)
FULL = registry.make("full", {"epochs": 1})


def acting(stage, allowed=None, boot=1):
    """The device of the stage, with these rules, and masks of a secret that the test knows."""
    settings = Settings("a", stage.folder / "a.npz", stage.folder)
    settings = replace(settings, allowed=allowed) if allowed else settings
    stage.agent = Agent(settings, boot, stage.clock, partial(InProcess, draw=lambda size: SECRET[:size]))
    stage.link = stage.wire(stage.agent)
    stage.agent.inbox.put(Connected(first=True))
    return stage


def content(stage, sent):
    """The content of a contribution, inline or from the device's blobs."""
    return sent.body or stage.agent.runner.blobs.get(sent.blob)


def opened(stage, sent, strategy, masks=MASKS):
    """The update of one device, as its sum with no other opens."""
    base = stage.bundle.weights()
    layout = layout_of(strategy, stage.bundle.manifest, base, masks)
    vector = MaskedVector.from_bytes(content(stage, sent), layout.values, layout.numbers)
    mask = MaskedVector.zeros(layout.values, layout.numbers)
    purpose = MaskPurpose("t", "r", sent.round, sent.kind, sent.form, "a", masks.min_group)
    mask.add_masks([unseal(HELPER, sent.mask, 0, purpose)])
    vector.subtract(mask)
    share = sums.weight_share(sent.num_examples, masks.most_weight)
    return sums.read(vector, layout, SummedGroup(1, share, sent.num_examples, masks.most_weight), strategy)


def offered(stage, *kinds, **changes):
    return stage.offer(**{"kinds": tuple(map(registry.write, kinds)), "masks": MASKS, **changes})


def test_a_masked_update_opens_to_the_update_that_the_device_sends_in_the_clear(stage):
    acting(stage)
    for number, masks in ((1, MASKS), (2, None)):
        stage.link.announce(offered(stage, FEW, number=number, masks=masks))
        stage.go()
    masked, clear = stage.contributions
    update = opened(stage, masked, FEW).update
    for name, value in tensors.decode(clear.body).items():
        np.testing.assert_allclose(update.tensors[name], value, atol=1e-6)
    assert isnan(masked.metrics.train_loss) and clear.metrics.train_loss > 0
    assert update.train_loss == pytest.approx(clear.metrics.train_loss, rel=1e-6)
    assert (masked.num_examples, clear.mask) == (40, None)


def test_a_restart_before_the_receipt_sends_the_same_bytes_again_and_keeps_no_clear_update_or_secret(stage):
    acting(stage).link.receipts = False
    stage.link.announce(offered(stage, FULL))
    stage.go()
    [first] = stage.contributions
    sent = content(stage, first)
    acting(stage, boot=2).go()
    [again] = stage.contributions
    assert content(stage, again) == sent and first.blob is not None
    assert encode(msgspec.structs.replace(again, boot=first.boot)) == encode(first)
    sent_tensors, base = opened(stage, first, FULL).update.tensors, stage.bundle.weights()
    files = {path: path.read_bytes() for path in stage.folder.rglob("*") if path.is_file()}
    assert any(sent in data for data in files.values())
    for path, data in files.items():
        assert SECRET not in data, path
        for name, value in sent_tensors.items():
            learnt = value.tobytes()[:64]
            assert learnt == base[name].tobytes()[:64] or learnt not in data, (path, name)
    assert any((value != base[name]).any() for name, value in sent_tensors.items())


def test_a_contribution_is_masked_anew_for_each_round(stage):
    stage.start()
    for number in (1, 2):
        stage.link.announce(offered(stage, FEW, number=number))
        stage.go()
    first, two = stage.contributions
    assert first.mask.key != two.mask.key
    assert (np.frombuffer(first.body, np.uint8) != np.frombuffer(two.body, np.uint8)).mean() > 0.98


def test_masked_scalars_are_never_sent_in_compact_form(stage):
    acting(stage)
    kind = ZerothOrder(num_z=1)
    for number in (1, 2, 3):
        stage.link.announce(offered(stage, kind, number=number))
        stage.go()
    assert [sent.round for sent in stage.contributions] == [1, 2, 3]
    assert all(sent.mask is not None for sent in stage.contributions)


def test_what_was_shortened_is_logged_and_said_in_the_plan_without_its_factor(stage, caplog, monkeypatch):
    monkeypatch.setattr("device_runtime.strategies.masking.layout.LEAST_BOUND", LEAST_BOUND / 2**12)
    monkeypatch.setattr("device_runtime.strategies.masking.layout.TIMES_BASE", 2.0**-12)
    acting(stage)
    stage.link.announce(offered(stage, FEW))
    stage.go()
    assert len(stage.contributions) == 1
    first, last = stage.link.of(Plan)
    assert (SHORTENED in first.reasons, SHORTENED in last.reasons) == (False, True)
    assert "round 1: its changes were shortened to 0." in caplog.text
    assert not any("0." in reason for reason in last.reasons)


def test_a_kind_that_does_not_add_up_is_passed_over_with_the_reason(stage):
    acting(stage)
    stage.link.announce(offered(stage, AttentionTransfer(), ClassMeans()))
    stage.go()
    assert [sent.kind for sent in stage.contributions] == ["class-means"]


def test_a_kind_that_was_alone_is_passed_over_if_another_fits(stage):
    acting(stage)
    masks = msgspec.structs.replace(MASKS, alone=("few-shot",))
    stage.link.announce(offered(stage, FEW, ClassMeans(), masks=masks))
    stage.go()
    assert [sent.kind for sent in stage.contributions] == ["class-means"]
    assert stage.link.of(Plan)[-1].reasons == ("few-shot was chosen by too few devices to be summed",)
    masks = msgspec.structs.replace(MASKS, alone=("few-shot", "class-means"))
    stage.link.announce(offered(stage, FEW, ClassMeans(), number=2, masks=masks))
    stage.go()
    assert [sent.kind for sent in stage.contributions] == ["class-means", "few-shot"]


SHOWN = f"club={KEY.key.hex()[:16]}"
OTHER = HelperKey("other", crypto_scalarmult_base(b"\x08" * 32))


@pytest.mark.parametrize(
    ("allowed", "masks", "why"),
    [
        (AllowList(mask_helpers=(str(KEY),)), MASKS, ""),
        (AllowList(mask_helpers=(str(KEY),)), None, ""),
        (AllowList(only_masked=True), MASKS, ""),
        (AllowList(mask_helpers=(str(KEY), str(OTHER))), (OTHER, KEY), ""),
        (
            AllowList(mask_helpers=(str(OTHER),)),
            MASKS,
            f"its updates are masked for {SHOWN}, the owner allows other={OTHER.key.hex()[:16]}",
        ),
        (
            AllowList(mask_helpers=(str(KEY),)),
            (KEY, OTHER),
            f"its updates are masked for {SHOWN}, other={OTHER.key.hex()[:16]}, the owner allows {SHOWN}",
        ),
        (
            AllowList(only_masked=True),
            None,
            "the aggregator would see this device's own update, the owner allows masked ones only",
        ),
        (
            AllowList(only_masked=True),
            msgspec.structs.replace(MASKS, min_group=1),
            "its masked sums may be of 1 device, the owner allows masked updates only",
        ),
    ],
)
def test_an_owner_pins_mask_helpers_and_may_allow_masked_rounds_only(allowed, masks, why):
    masks_ = msgspec.structs.replace(MASKS, helpers=masks) if isinstance(masks, tuple) else masks
    assert allowed.refuses_masks(masks_) == why


@pytest.mark.parametrize(
    ("allowed", "masks"),
    [(AllowList(only_masked=True), None), (AllowList(mask_helpers=(str(OTHER),)), MASKS)],
)
def test_a_round_that_the_owner_does_not_allow_is_passed_over_in_log_and_plan_and_nothing_is_fetched(
    stage, caplog, allowed, masks
):
    acting(stage, allowed)
    stage.link.announce(offered(stage, ClassMeans(), masks=masks), unasked=False)
    stage.go()
    assert not stage.link.of(Get) and not stage.link.of(Contribution)
    why = allowed.refuses_masks(masks)
    assert why and f"round 1 left out: {why}" in caplog.text
    [plan] = stage.link.of(Plan)
    assert (plan.kind, plan.round, plan.reasons) == ("", 1, (why,))


@pytest.mark.parametrize("allowed", [AllowList(only_masked=True), AllowList(mask_helpers=(str(KEY),))])
def test_a_round_with_the_owner_s_helpers_is_worked_on_and_the_lobby_is_no_round(stage, allowed):
    acting(stage, allowed)
    stage.link.announce(offered(stage, number=0, masks=None))
    stage.go()
    stage.link.announce(offered(stage, ClassMeans()))
    stage.go()
    assert [(sent.kind, sent.mask is not None) for sent in stage.contributions] == [("class-means", True)]
