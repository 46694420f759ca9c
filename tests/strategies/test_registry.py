import msgspec
import pytest

from broker.messages import Kind, pack
from strategies import registry
from strategies.entropy_subset import EntropySubset
from strategies.full import Full
from strategies.registry import KindError


@pytest.mark.parametrize("name", registry.KINDS)
def test_settings_travel_in_the_offer_and_come_back_equal(name):
    strategy = registry.make(name)
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(registry.write(strategy)), type=Kind)
    assert registry.read(wire) == strategy


def test_hyperparameters_differ_from_the_defaults_on_both_ends_alike():
    strategy = EntropySubset(shares=(0.3,), rho=0.5)
    assert registry.read(registry.write(strategy)) == strategy


def test_the_default_order_is_richest_first():
    assert list(registry.KINDS) == ["full", "entropy-subset", "few-shot", "zeroth-order", "class-means"]


def test_a_kind_of_a_newer_aggregator_is_passed_over():
    offered = (Kind("quantum", pack({})), registry.write(Full()))
    assert registry.known(offered) == (Full(),)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("telepathy", {}, "no kind of update is called 'telepathy'; there are full"),
        ("full", {"epochs": "many"}, "settings of full: Expected `int`"),
        ("entropy-subset", {"shares": [2.0]}, "settings of entropy-subset: .*shares"),
    ],
)
def test_wrong_kinds_and_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(KindError, match=message):
        registry.make(name, settings)
