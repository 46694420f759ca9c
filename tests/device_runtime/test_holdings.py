import hashlib

import msgspec
import numpy as np
import pytest

from broker.blobs import name
from broker.errors import BlobError
from broker.messages import Base, Offer, Step
from device_runtime.errors import StaleBase, UnusableBase
from device_runtime.holdings import Holdings
from models.tensors import TensorError, encode
from strategies.directions import GENERATOR
from strategies.replaying import replay


def step(number):
    return Step(number, GENERATOR, 1000 + number, "head", 0.01, 1.0, (0.5 * number, -1.25))


class Aggregator:
    """What the aggregator has: a checkpoint, and a log of zeroth-order steps."""

    def __init__(self, bundle, holdings):
        self.bundle, self.holdings = bundle, holdings
        self.start = bundle.weights()
        self.checkpoint = encode(self.start)

    def base(self, steps, tail=2):
        log = tuple(step(n) for n in range(steps))
        weights = replay(self.start, log, self.bundle.manifest)
        encoded = msgspec.msgpack.encode(log)
        return (
            Base(
                checkpoint=(name(self.checkpoint),),
                sha=hashlib.sha256(encode(weights)).digest(),
                steps=steps,
                tail=log[-tail:] if steps else (),
                log=name(encoded) if steps > tail else None,
            ),
            {"checkpoint": self.checkpoint, "log": encoded},
            weights,
        )

    def offer(self, steps, **changes):
        base, blobs, weights = self.base(steps)
        packed = self.bundle.packed()
        offer = Offer(
            task="t", run="r", round=steps + 1, seed=1, deadline_s=1.0, remaining_s=1.0,
            bundle=name(packed), base=base, kinds=(),
        )  # fmt: skip
        return offer, {**blobs, "bundle": packed}, weights


@pytest.fixture
def holdings(tmp_path):
    return Holdings(tmp_path)


@pytest.fixture
def aggregator(bundle, holdings):
    return Aggregator(bundle, holdings)


def missing(holdings, offer, blobs):
    names = {name(data): what for what, data in blobs.items()}
    return [names[blob] for blob in (*holdings.missing_bundles(offer), *holdings.missing(offer.base))]


def take(holdings, aggregator, steps):
    """Fetch what is missing for an offer, and return what that was with the base that came of it."""
    offer, blobs, weights = aggregator.offer(steps)
    fetched = missing(holdings, offer, blobs)
    for what in fetched:
        holdings.blobs.put(blobs[what])
    base = holdings.base(offer.base, aggregator.bundle.manifest)
    assert all(np.array_equal(base[n], weights[n]) for n in weights)
    return fetched


def test_a_device_that_keeps_up_fetches_the_checkpoint_once_and_then_nothing(holdings, aggregator):
    assert take(holdings, aggregator, 0) == ["checkpoint"]  # the bundle is a shipped one
    assert [take(holdings, aggregator, n) for n in (1, 2, 3, 4)] == [[], [], [], []]


def test_a_device_that_missed_a_few_rounds_catches_up_by_the_tail(holdings, aggregator):
    take(holdings, aggregator, 3)
    assert take(holdings, aggregator, 5) == []


def test_a_device_that_missed_many_rounds_fetches_the_log_not_the_model(holdings, aggregator):
    take(holdings, aggregator, 1)
    assert take(holdings, aggregator, 9) == ["log"]


def test_a_joiner_fetches_checkpoint_and_log(holdings, aggregator):
    assert take(holdings, aggregator, 9) == ["checkpoint", "log"]


def test_a_base_that_was_rolled_back_is_replayed_from_the_checkpoint(holdings, aggregator):
    take(holdings, aggregator, 5)
    take(holdings, aggregator, 2)


def test_a_result_that_is_not_the_aggregator_s_is_not_trained_on(holdings, aggregator):
    take(holdings, aggregator, 1)
    offer, _, _ = aggregator.offer(2)
    wrong = msgspec.structs.replace(offer.base, sha=b"\x01" * 32)
    with pytest.raises(StaleBase, match="after 2 steps is not the aggregator's: beginning anew"):
        holdings.base(wrong, aggregator.bundle.manifest)
    take(holdings, aggregator, 2)  # and it begins anew


def test_a_base_that_is_wrong_from_its_checkpoint_on_is_not_tried_for_ever(holdings, aggregator):
    offer, _, _ = aggregator.offer(2)
    holdings.blobs.put(aggregator.checkpoint)
    wrong = msgspec.structs.replace(offer.base, sha=b"\x01" * 32)
    with pytest.raises(UnusableBase, match="after 2 steps"):
        holdings.base(wrong, aggregator.bundle.manifest)


def test_a_log_that_is_not_one_makes_the_base_unusable(holdings, aggregator):
    offer, _, _ = aggregator.offer(5)
    holdings.blobs.put(aggregator.checkpoint)
    log = holdings.blobs.put(b"no log of steps")
    with pytest.raises(UnusableBase, match="is not a log of steps"):
        holdings.base(msgspec.structs.replace(offer.base, log=log), aggregator.bundle.manifest)


def test_a_bundle_that_was_damaged_on_disk_is_removed_and_fetched_anew(holdings, aggregator, tmp_path):
    offer, _, _ = aggregator.offer(0)
    holdings.missing_bundles(offer)
    folder = tmp_path / "bundles" / offer.bundle.hex
    (folder / "manifest.json").write_bytes(b"{")
    with pytest.raises(BlobError, match="was damaged here, and is removed"):
        holdings.bundle(offer.bundle)
    assert not folder.exists()


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(holdings, aggregator):
    weights = dict(aggregator.start)
    weights.pop("conv1.weight")
    data = encode(weights)
    holdings.blobs.put(data)
    base = Base(checkpoint=(name(data),), sha=name(data).sha)
    with pytest.raises(TensorError, match="conv1.weight missing"):
        holdings.base(base, aggregator.bundle.manifest)


def test_blobs_that_no_round_needs_are_dropped_but_not_what_waits_to_be_sent(holdings, aggregator):
    waiting, old = holdings.blobs.put(b"waiting"), holdings.blobs.put(b"old")
    offer, blobs, _ = aggregator.offer(0)
    checkpoint = holdings.blobs.put(blobs["checkpoint"])
    holdings.prune(offer, [waiting, None])
    assert (holdings.blobs.has(waiting), holdings.blobs.has(checkpoint)) == (True, True)
    assert not holdings.blobs.has(old)


def test_a_bundle_is_unpacked_once_and_verified_when_opened(holdings, aggregator):
    offer, _, _ = aggregator.offer(0)
    assert holdings.missing_bundles(offer) == ()
    assert holdings.missing(offer.base) == offer.base.checkpoint
    opened = holdings.bundle(offer.bundle)
    assert opened.sha256 == aggregator.bundle.sha256
