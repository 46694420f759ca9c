from dataclasses import replace

import msgspec
import pytest
from nacl.bindings import crypto_scalarmult_base

from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.masking.seeds import MaskPurpose, seal, unseal

HELPERS = (b"\x11" * 32, b"\x22" * 32)
PUBLIC = [crypto_scalarmult_base(secret) for secret in HELPERS]
PURPOSE = MaskPurpose("digits", "run-1", 3, "full", "", "pi-7", 5)


def test_each_helper_derives_the_seed_of_the_device_and_no_other():
    mask, seeds = seal(b"\x33" * 32, PUBLIC, PURPOSE)
    assert [unseal(secret, mask, at, PURPOSE) for at, secret in enumerate(HELPERS)] == list(seeds)
    assert len(set(seeds)) == 2
    with pytest.raises(MaskError, match="the mask of pi-7 is not for this helper"):
        unseal(HELPERS[0], mask, 1, PURPOSE)


@pytest.mark.parametrize(
    "other",
    [
        {"task": "speech"},
        {"run": "run-2"},
        {"round": 4},
        {"kind": "peft"},
        {"form": "bias"},
        {"device": "pi-8"},
        {"min_group": 1},
        {"noise_milli": 1},
        {"clip_milli": 1000},
        {"exponents": ((10, 20), (5, -3))},
    ],
)
def test_a_seed_is_refused_for_any_other_purpose(other):
    mask, _ = seal(b"\x33" * 32, PUBLIC, PURPOSE)
    with pytest.raises(MaskError, match="not for this helper, or not for"):
        unseal(HELPERS[0], mask, 0, replace(PURPOSE, **other))


def test_purposes_whose_texts_join_alike_are_told_apart():
    first, second = replace(PURPOSE, task="ab", run="c"), replace(PURPOSE, task="a", run="bc")
    assert first.encoded() != second.encoded()


def test_a_purpose_without_noise_is_written_as_before_there_was_noise():
    numbers = b"".join(number.to_bytes(8, "big") for number in (3, 5, 0, 0))
    texts = [b"digits", b"run-1", b"full", b"", b"pi-7"]
    assert PURPOSE.encoded() == b"".join(len(text).to_bytes(4, "big") + text for text in texts) + numbers


def test_a_helper_key_that_is_no_point_is_refused():
    with pytest.raises(MaskError, match="not a valid key for a mask"):
        seal(b"\x33" * 32, [bytes(32)], PURPOSE)


def test_with_noise_a_seed_is_bound_to_the_number_of_helpers_that_share_it():
    """An aggregator that adds tags would have a helper add less noise than the device was promised."""
    noisy = replace(PURPOSE, noise_milli=1000, clip_milli=1000, exponents=((10, 5),))
    for purpose, bound in ((noisy, True), (PURPOSE, False)):
        mask, [seed] = seal(b"\x33" * 32, PUBLIC[:1], purpose)
        padded = msgspec.structs.replace(mask, tags=(*mask.tags, bytes(16), bytes(16)))
        if bound:
            with pytest.raises(MaskError, match="not for this helper"):
                unseal(HELPERS[0], padded, 0, purpose)
        else:
            assert unseal(HELPERS[0], padded, 0, purpose) == seed
