import numpy as np
import pytest

from strategies.entropy_subset import EntropySubset


def test_the_least_certain_samples_are_selected_most_uncertain_first():
    logits = np.log(np.array([[0.98, 0.02], [0.5, 0.5], [0.7, 0.3], [0.9, 0.1]], np.float32))
    assert EntropySubset(shares=(0.5,), rho=1.0).least_sure(logits).tolist() == [1, 2]


def test_the_share_is_rounded_up_and_ties_keep_the_order_of_the_data():
    logits = np.zeros((5, 3), np.float32)
    assert EntropySubset(shares=(0.25,)).least_sure(logits).tolist() == [0, 1]


def test_hardening_changes_who_is_uncertain():
    """rho 0.1 makes a near-tie of two classes more uncertain than a wide spread over ten."""
    near_tie = [0.0, 0.0] + [-2.0] * 8
    spread = [0.0] + [-0.8] * 9
    logits = np.array([near_tie, spread], np.float32)
    assert EntropySubset(shares=(0.5,), rho=1.0).least_sure(logits).tolist() == [1]
    assert EntropySubset(shares=(0.5,), rho=0.1).least_sure(logits).tolist() == [0]


def test_only_the_upper_part_is_trained_and_sent(model, digits, run):
    sent = EntropySubset(shares=(0.25,), epochs=2).train(model, digits, run())
    assert set(sent.tensors) == set(model.manifest.names("mid"))
    assert sent.num_examples == 60
    assert any(not np.array_equal(sent.tensors[n], model.weights[n]) for n in sent.tensors)


def test_forms_run_from_the_largest_share_down():
    assert [form.share for form in EntropySubset(shares=(0.1, 0.5)).variants()] == [0.5, 0.1]


@pytest.mark.parametrize("settings", [{"shares": ()}, {"shares": (0.0,)}, {"shares": (1.5,)}, {"rho": 0.0}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        EntropySubset(**settings)
