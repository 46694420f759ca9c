import numpy as np
import pytest

from device_runtime.profiles import shipped
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds.entropy_subset import EntropySubset
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.training.workload import workload


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


@pytest.mark.parametrize(
    ("samples", "share", "why"),
    [
        (100, 0.1, ""),
        (90, 0.1, "would train on 9 of 90 samples, expected 10 or more"),
        (12, 0.5, "would train on 6 of 12 samples, expected 10 or more"),
        (19, 0.5, ""),
        (4, 1.0, ""),
        (0, 0.5, "has no local data"),
    ],
)
def test_a_form_that_would_train_on_too_few_samples_is_not_fit(bundle, samples, share, why):
    load = workload(bundle.manifest, (samples, *(0,) * 9))
    assert EntropySubset(shares=(share,), least_samples=10).infeasible_reason(load) == why
    assert EntropySubset(shares=(share,)).infeasible_reason(load) == ("" if samples else why)


def test_only_the_upper_part_is_trained_and_sent(model, digits, run):
    sent = EntropySubset(shares=(0.25,), epochs=2).train(model, digits, run())
    assert set(sent.tensors) == set(model.manifest.names("mid"))
    assert sent.num_examples == 60
    assert any(not np.array_equal(sent.tensors[n], model.weights[n]) for n in sent.tensors)


def test_forms_run_from_the_largest_share_down():
    assert [form.share for form in EntropySubset(shares=(0.1, 0.5)).variants()] == [0.5, 0.1]


def test_graded_forms_run_from_the_most_samples_over_all_epochs_down():
    """Five epochs of 25% are 1.25 of all samples, two of 50% are 1."""
    forms = [form.variant for form in EntropySubset(shares=(0.5, 0.25), graded=True).variants()]
    assert forms == ["50%", "25%", "50% epochs=2", "50% epochs=1", "25% epochs=2", "25% epochs=1"]


@pytest.mark.parametrize("settings", [{"shares": ()}, {"shares": (0.0,)}, {"shares": (1.5,)}, {"rho": 0.0}])
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        EntropySubset(**settings)


def test_two_forms_cannot_have_one_name():
    with pytest.raises(ValueError, match="shares are 12%, 12%: forms are named by whole percents"):
        EntropySubset(shares=(0.125, 0.12))


def test_at_random_as_many_samples_are_drawn_anew_in_each_round(model, digits, run):
    """FedFT-RDS."""
    strategy = EntropySubset(shares=(0.1,), select="random")
    chosen = [strategy.plan(model, digits, run(seed=seed)).indices for seed in (1, 2, 1)]
    assert [len(set(indices.tolist())) for indices in chosen] == [24, 24, 24]
    assert chosen[0].tolist() == chosen[2].tolist() != chosen[1].tolist()
    other = strategy.plan(model, digits, run("pi-2", seed=1)).indices
    assert other.tolist() != chosen[0].tolist()


def test_at_random_every_sample_has_the_same_chance(model, digits, run):
    """Over 300 rounds each of 40 samples is drawn 75 times, give or take 4.5 deviations of 7.5."""
    few = type(digits)(digits.x[:40], digits.y[:40])
    strategy = EntropySubset(shares=(0.25,), select="random")
    counts = np.zeros(40)
    for seed in range(300):
        counts[strategy.chosen(model, few, run(seed=seed))] += 1
    assert counts.sum() == 3000
    assert np.abs(counts - 75).max() < 34


def test_all_samples_need_no_choice(model, digits, run):
    """FedFT-ALL."""
    for select in ("entropy", "random"):
        chosen = EntropySubset(shares=(1.0,), select=select).chosen(model, digits, run())
        assert chosen.tolist() == list(range(240))


def test_what_is_drawn_at_random_is_not_scored_and_costs_no_forward_pass(bundle):
    load, board = workload(bundle.manifest, (24,) * 10), shipped("pi-4")
    drawn, scored = (EntropySubset(shares=(0.1,), select=s).cost(load, board) for s in ("random", "entropy"))
    assert scored.flops - drawn.flops == 240 * bundle.manifest.graphs["forward"].flops


def test_a_choice_of_samples_is_not_private():
    with pytest.raises(ValueError, match="entropy-subset does not take the term dp-sgd"):
        EntropySubset(terms=(DpSgd(),))


def test_a_selection_counts_as_itself_or_as_all_that_it_stands_for():
    update = Update("entropy-subset", {}, 25, 0.0, "25%")
    assert EntropySubset().weight(update) == 25
    local = EntropySubset(weigh="local")
    assert local.weight(update) == 100
    assert local.variants()[1].weight(update) == 100
