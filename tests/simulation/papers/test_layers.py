"""Layers of a setting."""

from benchmarks.papers.table import Deadline, Layer, over


def test_the_later_stands_over_the_earlier_and_tables_are_joined():
    below = Layer(
        devices=10, bundle="a", data={"alpha": 0.1, "max_train": 50}, settings={"full": {"epochs": 2}}
    )
    above = Layer(devices=20, data={"alpha": 0.5}, settings={"full": {"lr": 0.1}, "few-shot": {"shots": 5}})
    whole = over([below, above, Layer()])
    assert whole.devices == 20
    assert whole.bundle == "a"
    assert whole.data == {"alpha": 0.5, "max_train": 50}
    assert whole.settings == {"full": {"epochs": 2, "lr": 0.1}, "few-shot": {"shots": 5}}


def test_a_deadline_is_replaced_as_a_whole():
    assert over([Layer(deadline=Deadline(3.0, "slow")), Layer(deadline=Deadline(2.0))]).deadline == Deadline(
        2.0
    )


def test_no_layers_say_nothing():
    assert over([]) == Layer()
