"""Sums and refusals of a mask helper, with the attacks by which an aggregator could see a single update."""

import re

import msgspec
import numpy as np
import pytest

from device_runtime.mask_helper.summing import (
    MaskSum,
    SumLimits,
    SumRefused,
    check_request,
    deviation,
    opened_set,
    repeatable_bytes,
    sum_of_masks,
)
from device_runtime.strategies.masking.layout import CHECKS
from device_runtime.strategies.masking.masks import MaskedVector

from .conftest import SECRETS

NOISE = {"noise_milli": 1500, "clip_milli": 2000}


OWNER = SumLimits()


def opened(request, content, limits=OWNER, secret=SECRETS[0]):
    check_request(request, limits)
    return opened_set(secret, request, content, limits)


def refused(request, content, limits=OWNER, secret=SECRETS[0]):
    with pytest.raises(SumRefused) as error:
        opened(request, content, limits, secret)
    return str(error.value)


def same(left, other):
    return (left.values == other.values).all() and (left.sums == other.sums).all()


def test_the_sums_of_all_helpers_leave_the_sum_of_what_the_devices_sent(masking):
    """Devices send 1, 2 and 3, masked: 6 is left when each helper's sum is subtracted, and not before."""
    masks, total = masking(), MaskedVector.zeros(9, 2)
    for number, device in enumerate(("pi-1", "pi-2", "pi-3"), 1):
        masks.sealed(device)
        sent = MaskedVector(np.full(9, number, np.uint32), np.full(2, number, np.uint64))
        sent.add_masks(masks.entries[device][1])
        total.add(sent)
    for at, secret in enumerate(SECRETS):
        assert not (total.values == 6).any() and not (total.sums == 6).any()
        total.subtract(sum_of_masks(opened(*masks.request("pi-1", "pi-2", "pi-3", at=at), secret=secret)))
    assert (total.values == 6).all() and (total.sums == 6).all()


def test_devices_are_added_one_at_a_time(masking):
    masks = masking()
    adding = MaskSum(opened(*masks.request("pi-1", "pi-2", "pi-3")))
    assert [adding.advance() for _ in range(4)] == [False, False, False, True]
    assert same(adding.vector, masks.expected("pi-1", "pi-2", "pi-3"))
    adding = MaskSum(opened(*masks.request("pi-1", "pi-2", "pi-3")))
    adding.advance()
    assert same(adding.vector, masks.expected("pi-1"))


def test_forms_with_the_same_tensors_are_summed_together(masking):
    masks = masking()
    other = masks.sealed("pi-3", form="entropy-subset 50%")
    request = opened(*masks.request("pi-1", "pi-2", other))
    assert len(request.seeds) == 3


def test_a_set_is_the_same_in_any_order_and_another_with_any_other_number(masking):
    masks = masking()
    first = opened(*masks.request("pi-1", "pi-2", "pi-3"))
    assert opened(*masks.request("pi-3", "pi-1", "pi-2")).content == first.content
    assert opened(*masks.request("pi-1", "pi-2", "pi-3", values=10)).content != first.content
    assert opened(*masks.request("pi-1", "pi-2", "pi-4")).content != first.content


def test_opened_seeds_are_not_shown(masking):
    request = opened(*masking().request("pi-1", "pi-2", "pi-3"))
    assert not any(repr(seed) in repr(request) for seed in request.seeds)


@pytest.mark.parametrize(
    "other", [{"round": 3}, {"kind": "peft"}, {"run": "run-0"}, {"task": "speech"}, {"device": "pi-4"}]
)
def test_a_seed_of_another_round_kind_run_task_or_device_is_refused(masking, other):
    masks = masking()
    foreign = masks.sealed(other.get("device", "pi-3"), **({} if "device" in other else other))
    named = msgspec.structs.replace(foreign, device="pi-3")
    assert "the mask of pi-3 is not for this helper, or not for full in round 4 of task 'digits'" in refused(
        *masks.request("pi-1", "pi-2", named)
    )


def test_a_seed_for_another_helper_is_refused(masking):
    request, content = masking().request("pi-1", "pi-2", "pi-3", at=1)
    assert "the mask of pi-1 is not for this helper" in refused(request, content)
    one_helper = masking(publics=masking().publics[:1])
    assert "is not for this helper" in refused(*one_helper.request("pi-1", "pi-2", "pi-3", at=1))


def test_a_smaller_group_than_the_devices_were_promised_is_refused_though_the_request_names_it(masking):
    masks = masking(min_group=3)
    for device in ("pi-1", "pi-2"):
        masks.sealed(device)
    assert "with sums of 2 devices or more" in refused(*masks.request("pi-1", "pi-2", min_group=2))


def test_a_set_below_the_promised_group_is_refused(masking):
    reason = refused(*masking(min_group=3).request("pi-1", "pi-2"))
    assert reason == "the set has 2 devices, the round promises 3 or more"


def test_a_set_below_the_owner_s_own_group_is_refused_though_the_task_allows_it(masking):
    reason = refused(*masking(min_group=3).request("pi-1", "pi-2", "pi-3"), SumLimits(min_group=4))
    assert reason == "the set has 3 devices, this helper sums 4 or more"


def test_a_single_device_is_refused_by_default(masking):
    assert "this helper sums 2 or more" in refused(*masking(min_group=1).request("pi-1"))
    assert "the round promises 1 or more" in refused(*masking(min_group=1).request())


def test_a_device_in_a_set_twice_is_refused(masking):
    masks = masking()
    reason = refused(*masks.request("pi-1", "pi-2", "pi-1"))
    assert reason == "pi-1 is in the set twice: a device counts once in a sum"
    another = masks.sealed("pi-1", form="with another mask")
    assert "pi-1 is in the set twice" in refused(*masks.request("pi-1", "pi-2", another))


@pytest.mark.parametrize(
    "other, message",
    [
        ({"values": 3}, f"the vector has 3 values, expected {CHECKS} or more"),
        (
            {"values": 90, "sums": 11},
            "the vector has 90 values and 11 sums, at most 100 numbers are summed here",
        ),
        ({"body": b""}, "the request has both a body and a blob, or neither"),
        ({"task": "a/b"}, "task name 'a/b'"),
        ({"run": "r" * 300}, "the name of the run has 300 bytes, expected 256 at most"),
        ({"exponents": ((5, 3),)}, "1 runs of exponents without noise, expected none"),
    ],
)
def test_what_cannot_be_meant_or_is_too_large_is_refused(masking, other, message):
    limits = SumLimits(most_numbers=100)
    assert message in refused(*masking().request("pi-1", "pi-2", "pi-3", **other), limits)


def test_more_devices_than_the_owner_allows_are_refused(masking):
    reason = refused(*masking().request("pi-1", "pi-2", "pi-3"), SumLimits(most_devices=2))
    assert reason == "the set has 3 devices, this helper sums 2 at most"


@pytest.mark.parametrize(
    "content", [b"\x91", b"rubbish", msgspec.msgpack.encode([["pi-1", "", [b"short", []]]])]
)
def test_a_list_that_is_none_is_refused(masking, content):
    request, _ = masking().request("pi-1", "pi-2", "pi-3")
    assert refused(request, content).startswith("the list of seeds cannot be read: ")


def test_masks_for_different_numbers_of_helpers_are_not_summed(masking):
    masks = masking()
    fewer = masking(publics=masks.publics[:1]).sealed("pi-3")
    reason = refused(*masks.request("pi-1", "pi-2", fewer))
    assert reason == "the mask of pi-3 is for 1 helpers, others 2: a round has the same for all"


def noisy(masking, publics=None, values=20_000 + CHECKS, exponents=((20_000, 10),)):
    chosen = {} if publics is None else {"publics": publics}
    return masking(values=values, sums=0, more={**NOISE, "exponents": exponents}, **chosen)


@pytest.mark.parametrize("helpers, share", [(1, 3.0), (2, 3.0 / 2**0.5)])
def test_each_helper_adds_its_share_of_the_noise_in_units_of_the_fixed_point(masking, helpers, share):
    """Noise of 1.5 times a norm of 2 is 3, of each value; 2^10 units are 1."""
    masks = noisy(masking, masking().publics[:helpers])
    request = opened(*masks.request("pi-1", "pi-2", "pi-3"))
    assert deviation(request) == pytest.approx(share)
    answer = sum_of_masks(request, b"\x05" * 32)
    answer.subtract(masks.expected("pi-1", "pi-2", "pi-3"))
    added = answer.values.view(np.int32)
    assert (added[-CHECKS:] == 0).all()
    assert added[:-CHECKS].std() == pytest.approx(share * 1024, rel=0.03)
    assert abs(added[:-CHECKS].mean()) < 4 * share * 1024 / 20_000**0.5


def test_the_same_noise_is_added_again_and_another_from_another_seed(masking):
    request = opened(*noisy(masking).request("pi-1", "pi-2", "pi-3"))
    assert same(sum_of_masks(request, b"\x05" * 32), sum_of_masks(request, b"\x05" * 32))
    assert not same(sum_of_masks(request, b"\x05" * 32), sum_of_masks(request, b"\x06" * 32))


def test_bytes_of_a_seed_are_the_same_in_the_same_calls_and_never_repeat():
    first, again = repeatable_bytes(b"\x05" * 32), repeatable_bytes(b"\x05" * 32)
    drawn = [first(40), first(40)]
    assert drawn == [again(40), again(40)]
    assert drawn[0] != drawn[1] and {len(each) for each in drawn} == {40}


@pytest.mark.parametrize(
    "other", [{"noise_milli": 1499}, {"clip_milli": 1999}, {"exponents": ((20_000, 9),)}]
)
def test_less_noise_than_the_devices_were_promised_is_refused(masking, other):
    masks = noisy(masking)
    for device in ("pi-1", "pi-2", "pi-3"):
        masks.sealed(device)
    assert "is not for this helper, or not for" in refused(*masks.request("pi-1", "pi-2", "pi-3", **other))


@pytest.mark.parametrize(
    "other, message",
    [
        ({"exponents": ((19_999, 10),)}, "exponents are of 19999 values, expected 20000, for 20004 values"),
        ({"values": 20_005}, "exponents are of 20000 values, expected 20001, for 20005 values"),
        ({"sums": 1}, "the vector has 1 sums, to which no noise is added, expected 0"),
        ({"clip_milli": 0}, "noise of 1.5 times a clipping norm of 0, which is none"),
    ],
)
def test_noise_that_would_not_hide_all_values_is_refused(masking, other, message):
    assert refused(*noisy(masking).request("pi-1", "pi-2", "pi-3", **other)) == message


def test_noise_that_would_not_fit_the_values_is_refused(masking):
    masks = noisy(masking, exponents=((20_000, 31),))
    assert re.match(
        r"noise of 2.12132 times 2\^31, expected 0 to", refused(*masks.request("pi-1", "pi-2", "pi-3"))
    )
