"""Weights that do not fit, and blocks that come as they should not, sent to a real page."""

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of
from device_runtime.broker.wire.messages import Base, Contribution
from device_runtime.models.bundles import tensors

from .hostile import HONEST, Siege, besieged, repacked

pytestmark = pytest.mark.slow

NAME = sorted(HONEST.weights())[0]


@pytest.fixture(scope="module")
def siege(chromium, tmp_path_factory):
    with besieged(chromium, tmp_path_factory.mktemp("siege")) as one:
        one.honest_round()
        yield one


def changed(**instead):
    """The honest weights with some others; None: without."""
    every = HONEST.weights() | instead
    return tensors.encode({name: value for name, value in every.items() if value is not None})


def with_one(value):
    """Its first tensor with this as its first number."""
    other = HONEST.weights()[NAME].copy()
    other.flat[0] = value
    return changed(**{NAME: other})


WEIGHTS = {
    "shape": (
        lambda: changed(**{NAME: np.zeros((1, 2, 3), np.float32)}),
        rf"{NAME} is \(1, 2, 3\), expected",
    ),
    "dtype": (
        lambda: changed(**{NAME: HONEST.weights()[NAME].astype(np.float64)}),
        rf"{NAME} is float64, expected",
    ),
    "nan": (lambda: with_one(np.nan), rf"{NAME} has 1 non-finite value"),
    "infinity": (lambda: with_one(-np.inf), rf"{NAME} has 1 non-finite value"),
    "fewer": (lambda: changed(**{NAME: None}), rf"{NAME} missing"),
    "more": (lambda: changed(evil=np.zeros(3, np.float32)), r"evil not expected"),
    "rubbish": (lambda: b"\xff" * 100, r"100 bytes are not safetensors"),
    "header": (lambda: (2**40).to_bytes(8, "little") + b"{}", r"the header has 1099511627776 bytes"),
    "proto": (lambda: (13).to_bytes(8, "little") + b'{"__proto__":', r"are not safetensors"),
}


@pytest.mark.parametrize("which", WEIGHTS)
def test_weights_that_do_not_fit_are_refused(siege: Siege, which):
    made, words = WEIGHTS[which]
    held = siege.aggregator.hold(made())
    siege.attack(siege.offered(base=Base(checkpoint=(held,), sha=held.sha)))
    siege.refused(rf"round 1 left out: .*{words}")


def test_weights_that_are_not_those_the_offer_names_in_the_end_are_refused(siege: Siege):
    held = siege.aggregator.hold(with_one(3.0))
    siege.attack(siege.offered(base=Base(checkpoint=(held,), sha=bytes(32))))
    siege.refused(r"base model after 0 steps is not the aggregator's")
    siege.honest_round()


def learnt(siege: Siege, offer):
    """What it takes is put together in spite of all, learnt, and sent."""
    siege.attack(offer)
    made = siege.until(lambda: siege.aggregator.of(Contribution, offer.run))[0]
    siege.aggregator.receipt(made)


def test_blocks_that_come_in_any_order_and_twice_are_put_together(siege: Siege):
    plain = siege.aggregator.blocks

    def shuffled(get):
        blocks = list(plain(get))
        yield from reversed(blocks + blocks)

    siege.aggregator.blocks = shuffled
    bundle = siege.aggregator.hold(repacked(producer="in any order"))
    offer = siege.offered(bundle=bundle)
    learnt(siege, offer)
    siege.aggregator.blocks = plain
    siege.honest_round()


def test_blocks_that_are_too_long_too_many_or_of_nothing_are_dropped(siege: Siege):
    plain = siege.aggregator.blocks
    bundle = siege.aggregator.hold(repacked(producer="with more than it has"))

    def more(get):
        yield from ((index, b"x" * (BLOCK + 1)) for index in get.blocks)
        yield from ((index, b"") for index in get.blocks)
        yield from ((index, b"x" * BLOCK) for index in (99_999_999, 5000, get.blob.size // BLOCK + 1))
        yield from plain(get)

    siege.aggregator.blocks = more
    stranger = blob_of(b"nobody asked")
    for index in range(200):
        siege.aggregator.say(topics.block(stranger.sha, index), b"x" * BLOCK)
    offer = siege.offered(bundle=bundle)
    learnt(siege, offer)
    siege.aggregator.blocks = plain
    siege.honest_round()


def test_a_blob_that_never_ends_keeps_nobody_from_an_honest_round(siege: Siege):
    plain = siege.aggregator.blocks
    siege.aggregator.blocks = lambda get: (
        plain(get) if get.blob.size < 2**29 else ((index, bytes(BLOCK)) for index in get.blocks)
    )
    endless = msgspec.structs.replace(blob_of(b"endless"), size=2**30)
    siege.attack(siege.offered(bundle=endless))
    siege.page.get_by_text("Fetching the model").wait_for()
    siege.until(
        lambda: siege.page.evaluate(
            "/[1-9] [kM]B of 1.07 GB|[1-9] MB of/.test(document.getElementById('state').textContent)"
        )
    )
    siege.aggregator.offer = None
    assert siege.aggregator.of(Contribution) == []
    siege.honest_round()
    siege.aggregator.blocks = plain


def test_a_blob_that_the_aggregator_does_not_have_is_said(siege: Siege):
    siege.attack(siege.offered(bundle=blob_of(b"nowhere")))
    siege.refused(r"blob [0-9a-f]{12}: the aggregator does not have it")
    siege.honest_round()
