import hashlib

import msgspec
import numpy as np
import pytest

from device_runtime.broker.errors import BlobError, NoRoom
from device_runtime.broker.wire import step_log as steps
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Blob, Offer, Step
from device_runtime.device.delivery import cache as ways
from device_runtime.device.delivery.cache import ModelCache
from device_runtime.device.delivery.downloads import prune
from device_runtime.device.errors import StaleBase, UnusableBase
from device_runtime.models.bundles.tensors import TensorError, encode, encoded_parts
from device_runtime.models.errors import BundleError
from device_runtime.strategies.directions.directions import GENERATOR
from device_runtime.strategies.directions.replaying import replay


def step(number):
    return Step(number, GENERATOR, 1000 + number, "head", 0.01, 1.0, (0.5 * number, -1.25))


class Aggregator:
    """What the aggregator has: a checkpoint, and a log of zeroth-order steps in segments of four."""

    def __init__(self, bundle):
        self.bundle = bundle
        self.start = {name: values + np.float32(1) for name, values in bundle.weights().items()}
        self.start = {
            name: values.astype(bundle.weights()[name].dtype) for name, values in self.start.items()
        }

    def after(self, at):
        return replay(self.start, [step(n) for n in range(at)], self.bundle.manifest)

    def base(self, at, since=0, tail=2, segments=9):
        """`at` steps on the line, with the checkpoint after `since` of them."""
        done = [step(n) for n in range(at)]
        checkpoint = encode(self.after(since))
        logs = [steps.encode(done[n : n + 4]) for n in range(0, at, 4)][-segments:] if at else []
        base = Base(
            checkpoint=(blob_of(checkpoint),),
            sha=hashlib.sha256(encode(self.after(at))).digest(),
            line=hashlib.sha256(encode(self.start)).digest()[:8],
            steps=at - since,
            at=at,
            tail=steps.pack(done[max(0, at - tail) :]),
            log=tuple(map(blob_of, logs)),
        )
        first = (at - 1) // 4 - len(logs) + 1
        named = {f"log {first + n}": log for n, log in enumerate(logs)}
        return base, {"checkpoint": checkpoint, **named}, self.after(at)

    def offer(self, at, **base_of):
        base, blobs, weights = self.base(at, **base_of)
        packed = self.bundle.packed()
        offer = Offer(
            task="t", run="r", round=at + 1, seed=1, deadline_s=1.0, remaining_s=1.0,
            bundle=blob_of(packed), base=base, kinds=(),
        )  # fmt: skip
        return offer, {**blobs, "bundle": packed}, weights


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "SEGMENT", 4)
    return ModelCache(tmp_path)


@pytest.fixture
def aggregator(bundle, cache):
    return Aggregator(bundle)


def missing(cache, offer, blobs):
    names = {blob_of(data): what for what, data in blobs.items()}
    return [names[blob] for blob in (*cache.missing_bundles(offer), *cache.missing(offer.base))]


def take(cache, aggregator, at, **base_of):
    """Fetch what is missing for an offer, and return what that was with the base that came of it."""
    offer, blobs, weights = aggregator.offer(at, **base_of)
    fetched = missing(cache, offer, blobs)
    for what in fetched:
        cache.blobs.put(blobs[what])
    base = cache.base(offer.base, aggregator.bundle.manifest)
    assert all(np.array_equal(base[n], weights[n]) for n in weights)
    return fetched


def test_a_device_that_keeps_up_fetches_the_checkpoint_once_and_then_nothing(cache, aggregator):
    assert take(cache, aggregator, 0) == ["checkpoint"]  # the bundle is a shipped one
    assert [take(cache, aggregator, n) for n in (1, 2, 3, 4)] == [[], [], [], []]


def test_a_device_that_keeps_up_goes_over_a_new_checkpoint_by_steps_and_keeps_that(cache, aggregator):
    take(cache, aggregator, 3)
    offer, _, weights = aggregator.offer(4, since=4)
    parts = list(encoded_parts(weights, aggregator.bundle.manifest.parts()))
    base = msgspec.structs.replace(offer.base, checkpoint=tuple(map(blob_of, parts)))
    assert cache.missing(base) == ()
    cache.base(base, aggregator.bundle.manifest)
    prune(cache.blobs, msgspec.structs.replace(offer, base=base), [])
    later = ModelCache(cache.blobs.folder.parent)
    assert later.missing(base) == ()
    assert encode(later.base(base, aggregator.bundle.manifest)) == encode(weights)


def test_a_device_that_missed_a_few_rounds_catches_up_by_the_tail(cache, aggregator):
    take(cache, aggregator, 3)
    assert take(cache, aggregator, 5) == []


def test_a_device_that_missed_many_rounds_fetches_those_segments_of_the_log_not_the_model(cache, aggregator):
    take(cache, aggregator, 5)
    assert take(cache, aggregator, 14, since=12) == ["log 1", "log 2", "log 3"]
    assert take(cache, aggregator, 18, since=16) == ["log 3", "log 4"]


def test_a_joiner_fetches_checkpoint_and_the_steps_since(cache, aggregator):
    assert take(cache, aggregator, 9) == ["checkpoint", "log 0", "log 1", "log 2"]
    assert take(ModelCache(cache.blobs.folder.parent / "b"), aggregator, 15, since=12) == [
        "checkpoint", "log 3",
    ]  # fmt: skip


def test_who_missed_more_than_the_log_has_fetches_the_checkpoint(cache, aggregator):
    take(cache, aggregator, 5)
    assert take(cache, aggregator, 14, since=12, segments=2) == ["checkpoint"]


def test_a_joiner_takes_all_steps_from_the_bundle_s_weights_where_they_are_fewer_bytes(cache, aggregator):
    aggregator.start = aggregator.bundle.weights()
    offer, blobs, weights = aggregator.offer(14, since=12)
    cache.take_parts(aggregator.bundle, offer.base)
    assert missing(cache, offer, blobs) == ["log 0", "log 1", "log 2", "log 3"]
    for data in blobs.values():
        cache.blobs.put(data)
    assert encode(cache.base(offer.base, aggregator.bundle.manifest)) == encode(weights)


@pytest.mark.parametrize(
    ("most", "fetched"), [(1.95e6, ["checkpoint"]), (2.1e6, ["log 0", "log 1", "log 2", "log 3"])]
)
def test_what_would_take_too_long_to_replay_is_not(cache, aggregator, monkeypatch, most, fetched):
    """13 steps of 2 scalars, along directions of 77,562 elements: 2.02 million products."""
    take(cache, aggregator, 1)
    monkeypatch.setattr(ways, "MOST_REPLAYED", most)
    assert take(cache, aggregator, 14, since=12) == fetched


def test_a_base_that_was_rolled_back_is_replayed_from_the_checkpoint(cache, aggregator):
    take(cache, aggregator, 5)
    take(cache, aggregator, 2)


def test_a_result_that_is_not_the_aggregator_s_is_not_trained_on(cache, aggregator):
    take(cache, aggregator, 1)
    offer, _, _ = aggregator.offer(2)
    wrong = msgspec.structs.replace(offer.base, sha=b"\x01" * 32)
    with pytest.raises(StaleBase, match="after 2 steps is not the aggregator's: beginning anew"):
        cache.base(wrong, aggregator.bundle.manifest)
    assert take(cache, aggregator, 2) == []  # and it begins anew, with the checkpoint that it has


def test_a_base_is_checked_by_a_part_of_its_hash_but_not_by_less_than_four_bytes(cache, aggregator):
    take(cache, aggregator, 1)
    offer, _, weights = aggregator.offer(2)
    part = msgspec.structs.replace(offer.base, sha=offer.base.sha[:4])
    assert encode(cache.base(part, aggregator.bundle.manifest)) == encode(weights)
    with pytest.raises(StaleBase):
        cache.base(msgspec.structs.replace(offer.base, sha=b""), aggregator.bundle.manifest)


def test_a_device_that_no_step_and_no_checkpoint_leads_on_has_lost_the_line(cache, aggregator):
    take(cache, aggregator, 1)
    offer, _, _ = aggregator.offer(9)
    cut = msgspec.structs.replace(offer.base, log=())
    with pytest.raises(
        StaleBase, match="after 9 steps: no replay state and no blob of the offer leads there"
    ):
        cache.missing(cut)


@pytest.mark.parametrize("since", [4, 8])
def test_who_is_too_far_back_for_a_short_offer_asks_and_goes_on_by_the_log_of_the_whole_one(
    cache, aggregator, since
):
    """A checkpoint is more bytes, also where it is so near that the last steps lead on from there."""
    take(cache, aggregator, 1)
    offer, _, _ = aggregator.offer(9, since=since)
    with pytest.raises(
        StaleBase, match="after 9 steps: no replay state and no blob of the offer leads there"
    ):
        cache.missing(msgspec.structs.replace(offer.base, log=(), sha=offer.base.sha[:4]))
    assert take(cache, aggregator, 9, since=since) == ["log 0", "log 1", "log 2"]


def test_a_base_that_is_wrong_from_its_checkpoint_on_is_not_tried_for_ever(cache, aggregator):
    offer, blobs, _ = aggregator.offer(2)
    cache.blobs.put(blobs["checkpoint"])
    wrong = msgspec.structs.replace(offer.base, sha=b"\x01" * 32)
    with pytest.raises(UnusableBase, match="after 2 steps"):
        cache.base(wrong, aggregator.bundle.manifest)


@pytest.mark.parametrize("content", [b"no log of steps", steps.encode([step(4)])], ids=["rubbish", "foreign"])
def test_a_log_that_is_not_one_or_not_this_one_never_gets_into_the_model(cache, aggregator, content):
    offer, blobs, _ = aggregator.offer(5)
    for data in blobs.values():
        cache.blobs.put(data)
    log = cache.blobs.put(content)
    wrong = msgspec.structs.replace(offer.base, log=(log, log))
    with pytest.raises(UnusableBase, match="the log of the base|not the aggregator's"):
        cache.base(wrong, aggregator.bundle.manifest)


def test_a_bundle_that_was_damaged_on_disk_is_removed_and_fetched_anew(cache, aggregator, tmp_path):
    offer, _, _ = aggregator.offer(0)
    cache.missing_bundles(offer)
    folder = tmp_path / "bundles" / offer.bundle.hex
    (folder / "manifest.json").write_bytes(b"{")
    with pytest.raises(BlobError, match="was damaged here, and is removed"):
        cache.bundle(offer.bundle)
    assert not folder.exists()


def test_a_checkpoint_of_another_model_is_refused_with_the_difference(cache, aggregator):
    weights = dict(aggregator.start)
    weights.pop("conv1.weight")
    data = encode(weights)
    cache.blobs.put(data)
    base = Base(checkpoint=(blob_of(data),), sha=blob_of(data).sha)
    with pytest.raises(TensorError, match="conv1.weight missing"):
        cache.base(base, aggregator.bundle.manifest)


def test_blobs_that_no_round_needs_are_dropped_but_not_what_waits_to_be_sent(cache, aggregator):
    waiting, old = cache.blobs.put(b"waiting"), cache.blobs.put(b"old")
    offer, blobs, _ = aggregator.offer(0)
    checkpoint = cache.blobs.put(blobs["checkpoint"])
    prune(cache.blobs, offer, [waiting, None])
    assert (cache.blobs.has(waiting), cache.blobs.has(checkpoint)) == (True, True)
    assert not cache.blobs.has(old)


def test_a_bundle_is_unpacked_once_and_verified_when_opened(cache, aggregator):
    offer, _, _ = aggregator.offer(0)
    assert cache.missing_bundles(offer) == ()
    assert cache.missing(offer.base) == offer.base.checkpoint
    opened = cache.bundle(offer.bundle)
    assert opened.sha256 == aggregator.bundle.sha256


def test_what_was_put_down_is_gone_on_from_in_another_process(cache, aggregator, tmp_path):
    take(cache, aggregator, 5)
    cache.save_replay_state()
    later = ModelCache(tmp_path)
    later.blobs.prune([])
    assert take(later, aggregator, 6) == []


def test_what_was_put_down_and_is_another_model_now_is_begun_anew_from(cache, aggregator, tmp_path):
    take(cache, aggregator, 5)
    cache.save_replay_state()
    (file,) = (tmp_path / "stand").iterdir()
    file.write_bytes(encode(aggregator.start))
    later = ModelCache(tmp_path)
    offer, _, _ = aggregator.offer(6)
    with pytest.raises(StaleBase, match="beginning anew"):
        later.base(offer.base, aggregator.bundle.manifest)
    later.blobs.prune([])
    assert "checkpoint" in take(later, aggregator, 6)


def test_a_bundle_or_a_base_that_memory_cannot_hold_is_not_fetched(tmp_path, aggregator):
    offer, blobs, _ = aggregator.offer(0)
    free = 2 * len(blobs["bundle"]) - 1
    cache = ModelCache(tmp_path / "small", memory=lambda: free)
    huge = msgspec.structs.replace(offer, bundle=Blob(b"\1" * 32, len(blobs["bundle"])))
    with pytest.raises(BundleError, match=r"bundle 010101010101 needs .* MB of memory to be read, and"):
        cache.missing_bundles(huge)
    many = tuple(Blob(bytes([number]) * 32, 4 * 2**30 - 1) for number in range(10))
    base = msgspec.structs.replace(offer.base, checkpoint=many)
    with pytest.raises(UnusableBase, match=r"base model after 0 steps needs 42949.* MB of memory"):
        cache.missing(base)
    assert cache.missing(offer.base) == offer.base.checkpoint


def test_bundles_of_earlier_offers_make_room_for_the_next(tmp_path, bundle, another):
    size = len(bundle.packed())
    cache = ModelCache(tmp_path / "one", disk_bytes=3 * size)
    for number, content in enumerate((bundle, another)):
        blob = blob_of(content.packed())
        base = Base(checkpoint=(), sha=b"")
        offer = Offer(
            task="t", run="r", round=number, seed=1, deadline_s=1.0, remaining_s=1.0,
            bundle=blob, base=base, kinds=(),
        )  # fmt: skip
        cache._shipped = {}
        assert cache.missing_bundles(offer) == (blob,)
        prune(cache.blobs, offer, [])
        cache.blobs.put(content.packed())
        assert cache.bundle(blob).manifest.name == content.manifest.name
    assert [path.name for path in (tmp_path / "one" / "bundles").iterdir()] == [blob.hex]


def test_a_bundle_is_not_unpacked_where_the_owner_s_part_of_the_disk_is_taken(tmp_path, bundle):
    cache = ModelCache(tmp_path / "two", disk_bytes=int(1.5 * len(bundle.packed())))
    blob = cache.blobs.put(bundle.packed())
    with pytest.raises(NoRoom):
        cache.bundle(blob)
    assert not (tmp_path / "two" / "bundles").exists()
