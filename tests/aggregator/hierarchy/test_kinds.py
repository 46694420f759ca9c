"""Which kinds a site offers its devices, and why not the others."""

import pytest

from device_runtime.aggregator.hierarchy.forwarding import (
    NothingToForward,
    default_site_kinds,
    site_kinds,
    why_not,
)
from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Offer
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.registry import KINDS, make
from device_runtime.strategies.statistics import kind_statistics


def offer(*kinds):
    blob = blob_of(b"")
    return Offer(
        task="t", run="r", round=3, seed=1, deadline_s=1.0, remaining_s=1.0, bundle=blob,
        base=Base((blob,), blob.sha), kinds=tuple(registry.write(kind) for kind in kinds),
    )  # fmt: skip


def test_what_only_moves_the_base_is_offered_in_the_order_of_the_round_above(bundle):
    kinds = (
        make("full", {"epochs": 3}),
        make("entropy-subset"),
        make("few-shot", {"join_base": True}),
        make("zeroth-order"),
        make("class-means", {"head": "trained"}),
    )
    chosen = site_kinds(offer(*kinds), bundle.manifest, bundle.weights())
    assert (chosen.offered, chosen.left_out) == (kinds, ())
    assert chosen.forwarded == kinds[0]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (make("few-shot"), "its classifiers are also used outside the base model"),
        (make("few-shot", {"join_base": True, "send_mean": True}), "its classifiers are also used"),
        (make("class-means"), "its classifier is served, not trained into the base"),
        (make("prototypes"), "its merge changes more than the base model"),
        (make("sparse"), "changes more than the base model"),
        (make("width-slice"), "changes more than the base model"),
        (make("peft", {"tunable": "lora"}), "has no tunable set 'lora'"),
    ],
)
def test_what_is_more_than_a_base_is_left_out_with_its_reason(bundle, kind, why):
    assert why in why_not(kind, bundle.manifest)
    chosen = site_kinds(offer(make("full"), kind), bundle.manifest, bundle.weights())
    assert chosen.offered == (make("full"),)
    [reason] = chosen.left_out
    assert reason.startswith(f"{kind.name}: ")


def kind_of(kind):
    return kind_statistics.with_class_statistics(kind, ClassStatistics(samples=3))


def test_a_site_asks_its_devices_for_the_class_statistics_that_it_is_asked_for(bundle):
    full, scalars = kind_of(make("full")), kind_of(make("zeroth-order"))
    chosen = site_kinds(offer(full, scalars), bundle.manifest, bundle.weights())
    assert (chosen.offered, chosen.forwarded) == ((full, scalars), full)
    alone = site_kinds(offer(scalars), bundle.manifest, bundle.weights())
    assert (alone.offered, alone.forwarded) == ((scalars,), scalars)


def test_where_private_updates_are_forwarded_which_have_no_statistics_none_are_asked_for(bundle):
    private = kind_of(make("full", {"terms": {"dp-sgd": {}}}))
    chosen = site_kinds(offer(private, kind_of(make("zeroth-order"))), bundle.manifest, bundle.weights())
    assert [kind.statistics for kind in chosen.offered] == [None, None]


def test_every_kind_is_either_offered_or_left_out(bundle):
    kinds = [make(kind) for kind in KINDS]
    chosen = site_kinds(offer(*kinds), bundle.manifest, bundle.weights())
    assert len(chosen.offered) + len(chosen.left_out) == len(kinds)
    assert {kind.name for kind in chosen.offered} == {
        "full", "entropy-subset", "local-zeroth-order", "zeroth-order"
    }  # fmt: skip


def test_where_no_full_updates_are_asked_for_scalars_are_forwarded(bundle):
    scalars = make("zeroth-order", {"num_z": 5})
    chosen = site_kinds(offer(make("class-means"), scalars), bundle.manifest, bundle.weights())
    assert (chosen.forwarded, chosen.offered) == (scalars, (scalars,))
    assert chosen.left_out == ("class-means: without full updates a site forwards scalars only",)


def test_where_neither_is_asked_for_there_is_nothing_to_forward(bundle):
    why = "round 3 asks for class-means, and a site forwards full updates or scalars"
    with pytest.raises(NothingToForward, match=why):
        site_kinds(offer(make("class-means")), bundle.manifest, bundle.weights())


def test_before_any_round_a_site_gets_ready_for_the_usual_kinds(bundle):
    assert [kind.name for kind in default_site_kinds(bundle.manifest)] == list(registry.DEFAULT_KINDS)
