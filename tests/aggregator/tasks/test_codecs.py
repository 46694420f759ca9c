"""Updates that come by a codec: checked, kept as they came, and read against the base of their own round."""

import zlib

import numpy as np
import pytest

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.broker.wire.messages import Get, decode
from device_runtime.models.bundles import tensors
from device_runtime.strategies.codecs.chain import codec_named
from device_runtime.strategies.interface.device_half import NO_TENSORS

WORD = "delta+int8+deflate"
NAME = "head.weight"


def coded(name, word=WORD, **settings):
    return KindSettings(name=name, settings={"codec": word}, **settings)


def body_of(update, base, word=WORD):
    content, examples = update
    return codec_named(word).encode(content, base, NO_TENSORS).body, examples


def asked_of(b, device):
    return [decode(p, Get) for t, p in b.link.sent if t.endswith(f"/{device}/dn/get")]


@pytest.mark.parametrize("word", ["delta", "half", WORD])
def test_what_is_merged_is_what_the_codec_reads(bench, make_task, update_of, bundle, word):
    b = bench(make_task(coded("full", word), rounds=1))
    b.join("a", "b")
    base, read = bundle.weights(), []
    for seed, device in enumerate(("a", "b")):
        update = update_of("full", seed)
        assert (
            b.contribute(device, b.contribution("full", body_of(update, base, word)))[0].status == "accepted"
        )
        read.append(codec_named(word).rounded(update[0], base, NO_TENSORS).read)
    merged = b.weights(b.store.rounds.start(2).base)
    for name, value in read[0].items():
        expected = (10.0 * value.astype(np.float64) + 11.0 * read[1][name].astype(np.float64)) / 21
        np.testing.assert_array_equal(merged[name], expected.astype(np.float32))


def test_a_coded_update_is_kept_as_it_came_and_takes_a_quarter(bench, make_task, update_of, bundle):
    b = bench(make_task(coded("full"), rounds=1))
    b.join("a", "b")
    body, examples = body_of(update_of("full"), bundle.weights())
    b.contribute("a", b.contribution("full", (body, examples)))
    [stored] = b.store.contributions.of_round(1)
    assert b.store.contributions.content(stored) == body
    assert len(body) < 0.25 * len(tensors.encode(update_of("full")[0]))


@pytest.mark.parametrize("mode", [{"late": "count"}, {"buffer_size": 1}])
def test_a_late_coded_update_is_read_against_the_base_that_it_was_made_for(bench, make_task, bundle, mode):
    """By hand: round 1 moves a tensor by 1. A device that moved round 1's base by 2 sends the change 2,
    which counts as 2 ** -0.5 * 2 on round 2's.
    """
    name, start = bundle.manifest.head.weight, bundle.weights()[bundle.manifest.head.weight]
    b = bench(make_task(coded("full"), rounds=2, **mode))
    first = bundle.weights()

    def full(change):
        return body_of(({**first, name: start + np.float32(change)}, 10), first)

    b.join("a", "b")
    b.contribute("a", b.contribution("full", full(1.0)))
    b.wait(10.0)
    np.testing.assert_allclose(b.weights(b.store.rounds.start(2).base)[name] - start, 1.0, atol=1e-6)
    receipt = b.contribute("b", b.contribution("full", full(2.0)))[0]
    assert (receipt.status, receipt.reason) == (
        "accepted",
        "round 1 is closed, counted in round 2 unless a newer one comes",
    )
    b.wait(10.0)
    np.testing.assert_allclose(
        b.weights(b.store.rounds.start(3).base)[name] - start, 1 + 2 * 2**-0.5, atol=1e-5
    )


def test_a_round_of_coded_updates_goes_on_after_a_restart(bench, make_task, update_of, bundle):
    b = bench(make_task(coded("full"), rounds=1))
    b.join("a", "b")
    b.contribute("a", b.contribution("full", body_of(update_of("full"), bundle.weights())))
    b.restart().join("a", "b", boot=2)
    sent = b.contribution("full", body_of(update_of("full", 1), bundle.weights()), boot=2)
    assert b.contribute("b", sent)[0].status == "accepted"
    b.wait(2.0)
    assert [closed.record.participants for closed in b.store.rounds.closed()] == [2]


def test_a_decompression_bomb_is_refused_with_its_reason(bench, make_task):
    b = bench(make_task(coded("full"), rounds=1))
    b.join("a")
    bomb = zlib.compress(bytes(60_000_000), 9)
    receipt = b.contribute("a", b.contribution("full", (bomb, 10)))[0]
    assert receipt.status == "refused"
    assert f"{len(bomb)} deflated bytes unpack to more than" in receipt.reason


def test_more_than_a_coded_update_can_have_is_refused_before_it_is_fetched(bench, make_task, bundle):
    b = bench(make_task(coded("full"), rounds=1))
    b.join("a")
    receipt = b.contribute("a", b.contribution("full", (bytes(400_000), 10)))[0]
    assert receipt.status == "refused"
    assert "its content has 400000 bytes, expected at most 34" in receipt.reason
    assert asked_of(b, "a") == []


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (lambda w: {**w, NAME: np.zeros((1, 3), np.int8)}, f"{NAME} is int8 (1, 3), expected int8"),
        (lambda w: {**w, NAME: np.zeros(w[NAME].shape, np.int8)}, f"{NAME} has scales that are missing"),
        (lambda w: {**w, NAME: w[NAME].astype(np.float16)}, f"{NAME} is float16"),
        (lambda w: {**w, NAME: w[NAME] * np.float32(np.nan)}, "non-finite"),
        (lambda w: {**w, "other": np.zeros(3, np.float32)}, "other not expected"),
    ],
)
def test_content_that_no_codec_makes_is_refused_with_its_reason(bench, make_task, bundle, wire, text):
    b = bench(make_task(coded("full", "delta+int8"), rounds=1))
    b.join("a")
    weights = bundle.weights()
    body = tensors.encode(wire({name: weights[name] for name in bundle.manifest.names("all")}))
    receipt = b.contribute("a", b.contribution("full", (body, 10)))[0]
    assert receipt.status == "refused"
    assert text in receipt.reason


@pytest.mark.parametrize("name", ["zeroth-order", "class-means"])
def test_kinds_whose_numbers_must_be_exact_take_no_codec(name):
    with pytest.raises(ValueError, match=f"{name} has no setting 'codec'"):
        coded(name)


def test_a_word_that_names_no_codec_is_refused_when_the_task_is_made():
    with pytest.raises(ValueError, match="settings of full: no codec is called 'zstd'"):
        coded("full", "zstd")
