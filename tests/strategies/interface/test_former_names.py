"""Own kinds that are written for the release before go on working, with warnings."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from device_runtime.kinds import FedAvg, Strategy
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import FOLDS_OTHERWISE, MERGES_MORE, Comparable
from device_runtime.strategies.interface.kind import unfit_reason, variant_named
from device_runtime.strategies.kinds import registry


class Halves(Strategy[Any]):
    """The six methods, which do nothing."""

    def cost(self, workload, profile): ...
    def train(self, model, data, run): ...
    def expected(self, manifest):
        return ()

    def start(self, model): ...
    def fold(self, state, update, weight): ...
    def finish(self, state, model): ...


def test_class_variables_of_the_release_before_become_traits():
    with pytest.warns(DeprecationWarning) as warned:

        @dataclass(frozen=True)
        class Old(FedAvg):
            name: ClassVar[str] = "old"
            own_round: ClassVar[bool] = True
            refused: ClassVar[tuple[str, ...]] = ("graded",)

    assert [str(each.message).rpartition("Old.")[2] for each in warned] == [
        "own_round: write class Old(.., own_round=True), from the next release on",
        "refused: write class Old(.., refused=('graded',)), from the next release on",
    ]
    assert {each.filename for each in warned} == {__file__}
    assert (Old.traits.own_round, Old.traits.trains_extractor) == (True, True)
    with pytest.raises(ValueError, match="old does not take the setting graded"):
        Old(graded=True)


def test_methods_and_variables_of_a_feature_give_a_class_its_capability():
    with pytest.warns(DeprecationWarning) as warned:

        @dataclass(frozen=True)
        class Old(Halves):
            name: ClassVar[str] = "old"
            compared_as: ClassVar[str] = "scalars"
            adds_up: ClassVar[bool] = True

            def longest_scalars(self, base_length, values):
                return min(base_length, super().longest_scalars(base_length, values))

            def changes(self, manifest):
                return ("head.bias",)

    assert {str(each.message).rpartition("Old.")[2] for each in warned} == {
        "compared_as: derive Old from Comparable, from the next release on",
        "adds_up: derive Old from Summable, from the next release on",
        "changes: derive Old from MergedAtSite, from the next release on",
    }
    kind = Old()
    assert isinstance(kind, Comparable)
    assert capabilities.compared_as(kind) == "scalars"
    assert (kind.longest_scalars(3.0, 1), kind.comparable(1, 2)) == (3.0, 1)
    assert capabilities.unsummable_reason(kind) == ""
    assert kind.site_refusal() == MERGES_MORE, "it did not say that a site can merge it"


def test_an_overridden_method_that_is_a_function_now_is_called_by_it():
    with pytest.warns(DeprecationWarning, match="unfit_reason: it will not be asked, from"):

        @dataclass(frozen=True)
        class Old(Halves):
            name: ClassVar[str] = "old"

            def variant_named(self, name):
                return self if name == "mine" else super().variant_named(name)

            def unfit_reason(self, workload):
                return "never"

    kind = Old()
    assert variant_named(kind, "mine") is kind
    with pytest.raises(KindError, match="old has no variant 'other', expected one of ''"):
        variant_named(kind, "other")
    assert unfit_reason(kind, None) == "never"


def test_a_kind_is_asked_by_the_names_of_the_release_before():
    kind = Halves.__new__(type("Bare", (Halves,), {"name": "bare"}))
    with pytest.warns(DeprecationWarning, match=r"Bare\.\w+ will be gone, from") as warned:
        assert (kind.by_class, kind.compared_as, kind.adds_up, kind.scalars) == (False, None, False, 0)
        assert (kind.codec, kind.forwarded_as, kind.stopped(0.5)) == ("", "", None)
        assert (kind.unsummable_reason(), kind.site_refusal()) == (FOLDS_OTHERWISE, MERGES_MORE)
        assert kind.variant_named("") is kind
        assert type(kind).generic is not None
    assert {each.filename for each in warned} == {__file__}


def test_shipped_kinds_say_nothing_by_the_names_of_the_release_before():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, kind in registry.KINDS.items():
            assert kind.traits.reveals, name
            registry.settings(registry.make(name))


def test_a_keyword_that_is_no_trait_is_refused():
    with pytest.raises(TypeError, match="by_clas"):

        class Wrong(FedAvg, by_clas=True):
            pass
