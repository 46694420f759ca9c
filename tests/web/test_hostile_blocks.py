"""Weights that do not fit, and blocks that come as they should not, sent to a real page."""

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.blobs import BLOCK, blob_of
from device_runtime.broker.wire.messages import Base, Contribution
from device_runtime.models.bundles import tensors

from .hostile import HONEST, AttackedPage, attacked_page, repacked

pytestmark = pytest.mark.slow

NAME = sorted(HONEST.weights())[0]


@pytest.fixture(scope="module")
def attacked(chromium, tmp_path_factory):
    with attacked_page(chromium, tmp_path_factory.mktemp("attacked")) as page:
        page.honest_round()
        yield page


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
def test_weights_that_do_not_fit_are_refused(attacked: AttackedPage, which):
    content, words = WEIGHTS[which]
    blob = attacked.aggregator.hold(content())
    attacked.attack(attacked.offered(base=Base(checkpoint=(blob,), sha=blob.sha)))
    attacked.refused(rf"round 1 left out: .*{words}")


def test_weights_that_are_not_those_the_offer_names_in_the_end_are_refused(attacked: AttackedPage):
    blob = attacked.aggregator.hold(with_one(3.0))
    attacked.attack(attacked.offered(base=Base(checkpoint=(blob,), sha=bytes(32))))
    attacked.refused(r"base model after 0 steps is not the aggregator's")
    attacked.honest_round()


def learnt(attacked: AttackedPage, offer):
    """What it takes is put together in spite of all, learnt, and sent."""
    attacked.attack(offer)
    contribution = attacked.until(lambda: attacked.aggregator.of(Contribution, offer.run))[0]
    attacked.aggregator.receipt(contribution)


def test_blocks_that_come_in_any_order_and_twice_are_put_together(attacked: AttackedPage):
    plain = attacked.aggregator.blocks

    def shuffled(get):
        blocks = list(plain(get))
        yield from reversed(blocks + blocks)

    attacked.aggregator.blocks = shuffled
    bundle = attacked.aggregator.hold(repacked(producer="in any order"))
    offer = attacked.offered(bundle=bundle)
    learnt(attacked, offer)
    attacked.aggregator.blocks = plain
    attacked.honest_round()


def test_blocks_that_are_too_long_too_many_or_of_nothing_are_dropped(attacked: AttackedPage):
    plain = attacked.aggregator.blocks
    bundle = attacked.aggregator.hold(repacked(producer="with more than it has"))

    def more(get):
        yield from ((index, b"x" * (BLOCK + 1)) for index in get.blocks)
        yield from ((index, b"") for index in get.blocks)
        yield from ((index, b"x" * BLOCK) for index in (99_999_999, 5000, get.blob.size // BLOCK + 1))
        yield from plain(get)

    attacked.aggregator.blocks = more
    stranger = blob_of(b"nobody asked")
    for index in range(200):
        attacked.aggregator.say(topics.block(stranger.sha, index), b"x" * BLOCK)
    offer = attacked.offered(bundle=bundle)
    learnt(attacked, offer)
    attacked.aggregator.blocks = plain
    attacked.honest_round()


def test_a_blob_that_never_ends_keeps_nobody_from_an_honest_round(attacked: AttackedPage):
    plain = attacked.aggregator.blocks
    attacked.aggregator.blocks = lambda get: (
        plain(get) if get.blob.size < 2**29 else ((index, bytes(BLOCK)) for index in get.blocks)
    )
    endless = msgspec.structs.replace(blob_of(b"endless"), size=2**30)
    attacked.attack(attacked.offered(bundle=endless))
    attacked.page.get_by_text("Fetching the model").wait_for()
    attacked.until(
        lambda: attacked.page.evaluate(
            "/[1-9] [kM]B of 1.07 GB|[1-9] MB of/.test(document.getElementById('state').textContent)"
        )
    )
    attacked.aggregator.offer = None
    assert attacked.aggregator.of(Contribution) == []
    attacked.honest_round()
    attacked.aggregator.blocks = plain


def test_a_blob_that_the_aggregator_does_not_have_is_said(attacked: AttackedPage):
    attacked.attack(attacked.offered(bundle=blob_of(b"nowhere")))
    attacked.refused(r"blob [0-9a-f]{12}: the aggregator does not have it")
    attacked.honest_round()
