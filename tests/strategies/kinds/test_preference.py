"""Forms of update in the order of their measured gain."""

from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.peft import Peft
from device_runtime.strategies.kinds.preference import by_gain, gain


def labels(forms):
    return [f"{form.name} {form.variant}".strip() for form in forms]


def test_between_measured_shares_of_work_the_gain_is_interpolated_and_below_them_it_falls_to_nothing():
    """Half of the epochs: 11.6 points; a tenth: 10.9 * 0.1 / 0.25 = 4.4; all of 25% of the samples: 12.0."""
    full = FedAvg(graded=True)
    assert [gain(full, form, 0.0) for form in full.variants()] == [12.0, 12.0, 9.0, 4.0]
    assert gain(EntropySubset(), EntropySubset(shares=(0.25,)), 0.0) == 12.0


def test_a_form_that_gains_less_stands_behind_cheaper_kinds_that_gain_more():
    kinds = [
        registry.make(name, settings) for name, settings in registry.default_settings(registry.DEFAULT_KINDS)
    ]
    order = labels(by_gain(kinds))
    assert order[:7] == [
        *("full", "full epochs=5", "entropy-subset 50%", "entropy-subset 25%", "entropy-subset 50% epochs=2"),
        *("few-shot", "class-means"),
    ]
    assert order.index("few-shot") < order.index("full epochs=2") < order.index("full epochs=1")
    assert "entropy-subset 10%" not in order  # class means gain more, and cost less


def test_a_kind_that_was_not_measured_stays_behind_what_is_listed_before_it():
    forms = by_gain([FedAvg(), Peft(), EntropySubset(shares=(0.1,))])  # without class means it stays
    assert [form.name for form in forms] == ["full", "peft", "entropy-subset"]
