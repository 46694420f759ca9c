import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from device_runtime.models.bundles.tensors import Flat, TensorSpec
from device_runtime.models.training.optimizer import Sgd
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface.device_half import LocalData
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.terms import accountant
from device_runtime.strategies.terms.accountant import (
    PrivacyBudget,
    PrivacySpending,
    PrivacyUnavailable,
    total_epsilon,
)
from device_runtime.strategies.terms.dp_sgd import (
    BudgetExceeded,
    DpSgd,
    PrivacyLedger,
    dp_settings,
    noise_multiplier,
    sampling_rate,
    spent_in_round,
    steps,
)
from device_runtime.strategies.training import local_training
from device_runtime.strategies.training.local_training import TrainingPlan

SMALL = (200, 64, 10)
"""Samples, batch, epochs: a rate of 0.32 and 40 steps a round."""


@dataclass(frozen=True)
class Kind:
    dp: DpSgd | None = None
    batch: int = 64
    epochs: int = 10

    @property
    def terms(self):
        return (self.dp,) if self.dp else ()


@dataclass(frozen=True)
class Unprotected:
    batch: int = 64
    epochs: int = 10


def test_a_round_is_so_many_poisson_samples():
    """ceil(200 / 64) = 4 steps an epoch, each with a sample in 64 / 200; a small set goes in whole."""
    assert steps(*SMALL) == 40
    assert sampling_rate(200, 64) == 0.32
    assert (steps(64, 64, 3), sampling_rate(64, 64)) == (3, 1.0)
    assert (steps(5, 64, 3), sampling_rate(5, 64)) == (3, 1.0)
    assert (steps(65, 64, 3), sampling_rate(128, 64)) == (6, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 7, 50])
@pytest.mark.parametrize("shape", [SMALL, (30, 64, 5), (5000, 64, 1)])
def test_the_planned_rounds_spend_the_budget_and_one_more_exceeds_it(rounds, shape):
    dp = DpSgd(rounds=rounds)
    ledger, spending = PrivacyLedger(), dp.round(*shape)
    for _ in range(rounds - 1):
        ledger = ledger.after(spending)
    ledger.check(spending, dp.limit)
    ledger = ledger.after(spending)
    assert 4.9 < ledger.epsilon(dp.delta) <= 5
    assert ledger.rounds == rounds
    with pytest.raises(BudgetExceeded, match=rf"of 5 at delta 0\.001 after {rounds} round"):
        ledger.check(spending, dp.limit)


@pytest.mark.slow
def test_the_refusal_says_what_epsilon_would_be():
    dp = DpSgd(rounds=12)
    ledger = PrivacyLedger((PrivacySpending(dp.round(*SMALL).noise, 0.32, 480, 12),))
    epsilon = total_epsilon([PrivacySpending(dp.round(*SMALL).noise, 0.32, 520)], 1e-3)
    assert epsilon > 5
    with pytest.raises(BudgetExceeded) as refused:
        ledger.check(dp.round(*SMALL), dp.limit)
    assert str(refused.value) == f"epsilon would be {epsilon:.4g} of 5 at delta 0.001 after 12 rounds"


@pytest.mark.slow
def test_epsilon_is_the_library_s_for_the_same_steps():
    """With the library's own orders, and not far above what its tighter accountant says."""
    accounting = pytest.importorskip("dp_accounting")
    dp = DpSgd(epsilon=3.0, delta=1e-5, rounds=2)
    noise = noise_multiplier(dp, *SMALL)
    event = accounting.PoissonSampledDpEvent(0.32, accounting.GaussianDpEvent(noise))
    renyi, tight = (
        accounting.rdp.RdpAccountant(),
        accounting.pld.PLDAccountant(value_discretization_interval=1e-3),
    )
    for theirs in (renyi, tight):
        theirs.compose(event, 80)
    ours = total_epsilon([dp.round(*SMALL), dp.round(*SMALL)], 1e-5)
    assert ours == pytest.approx(renyi.get_epsilon(1e-5), rel=0.01)
    assert ours / 1.2 < tight.get_epsilon(1e-5) <= ours <= 3


def test_all_samples_in_each_step_are_the_gaussian_mechanism():
    """Rényi divergence alpha T / (2 sigma^2) of T steps (Mironov 2017, proposition 7 and corollary 3)."""
    dp = DpSgd(epsilon=2.0, delta=1e-5, rounds=3)
    sigma = noise_multiplier(dp, 10, 64, 4)
    rho = 3 * 4 / (2 * sigma**2)
    plain = min(rho * a + np.log(1e5) / (a - 1) for a in np.arange(1.5, 100, 0.01))
    exact = total_epsilon([PrivacySpending(sigma, 1.0, 12)], 1e-5)
    assert plain / 1.3 < exact < plain  # the library's conversion is tighter than the proposition's
    assert 1.99 < exact <= 2


@pytest.mark.slow
def test_more_rounds_epochs_or_privacy_take_more_noise_and_more_samples_less():
    usual = noise_multiplier(DpSgd(), *SMALL)
    assert noise_multiplier(DpSgd(rounds=100), *SMALL) > usual
    assert noise_multiplier(DpSgd(epsilon=1.0), *SMALL) > usual
    assert noise_multiplier(DpSgd(delta=1e-6), *SMALL) > usual
    assert noise_multiplier(DpSgd(), 200, 64, 20) > usual
    assert noise_multiplier(DpSgd(), 400, 64, 10) < usual
    assert noise_multiplier(DpSgd(max_norm=9.0), *SMALL) == usual


def test_noise_is_a_number_of_four_decimals():
    assert noise_multiplier(DpSgd(), *SMALL) == round(noise_multiplier(DpSgd(), *SMALL), 4)


@pytest.mark.slow
def test_different_settings_are_spent_together():
    first, other = PrivacySpending(2.0, 0.1, 100), PrivacySpending(3.0, 0.5, 100)
    alone = (total_epsilon([first], 1e-3), total_epsilon([other], 1e-3))
    both = total_epsilon([first, other], 1e-3)
    assert max(alone) < both < sum(alone)
    assert total_epsilon([other, first], 1e-3) == both
    assert total_epsilon([], 1e-3) == 0


def test_equal_settings_are_joined_so_that_a_ledger_stays_small():
    first, other = PrivacySpending(2.0, 0.1, 100), PrivacySpending(3.0, 0.5, 7)
    ledger = PrivacyLedger().after(first).after(other).after(first)
    assert ledger.events == (PrivacySpending(2.0, 0.1, 200, 2), PrivacySpending(3.0, 0.5, 7, 1))
    assert ledger == PrivacyLedger().after(other).after(first).after(first)
    assert ledger.rounds == 3


def test_a_limit_that_the_past_exceeds_refuses_any_more():
    with pytest.raises(BudgetExceeded, match=r"of 0\.5 at delta 0\.001 after 1 round$"):
        PrivacyLedger((PrivacySpending(1.0, 1.0, 10),)).check(
            PrivacySpending(1e6, 1.0, 1), PrivacyBudget(0.5, 1e-3)
        )


def test_the_plan_of_training_has_the_noise_of_what_is_spent():
    rng = np.random.default_rng(1)
    dp = DpSgd(max_norm=0.7)
    plan = dp.privacy(*SMALL, rng)
    assert (plan.max_norm, plan.rng) == (0.7, rng)
    assert plan.noise == dp.round(*SMALL).noise == noise_multiplier(dp, *SMALL)


@pytest.mark.slow
def test_a_kind_is_private_where_it_has_settings_for_it():
    assert dp_settings(Kind(DpSgd())) == DpSgd()
    assert dp_settings(Kind()) is None and dp_settings(Unprotected()) is None
    assert spent_in_round(Kind(DpSgd(), epochs=2), 200) == DpSgd().round(200, 64, 2)
    assert spent_in_round(Kind(), 200) is None and spent_in_round(Unprotected(), 200) is None


def test_settings_travel_nested_in_a_kind_s():
    sent = msgspec.msgpack.encode(Kind(DpSgd(epsilon=2.0, rounds=9)))
    assert msgspec.convert(msgspec.msgpack.decode(sent), Kind) == Kind(DpSgd(epsilon=2.0, rounds=9))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0, expected more than 0"),
        ({"epsilon": float("inf")}, "epsilon is inf"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "delta is 1.0, expected more than 0 and less than 1"),
        ({"max_norm": -1.0}, "max_norm is -1.0"),
        ({"rounds": 0}, "rounds is 0, expected 1 to"),
    ],
)
def test_settings_that_are_no_budget_are_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        DpSgd(**wrong)


@pytest.mark.parametrize(
    "wrong", [(0.0, 0.5, 1), (1.0, 1.5, 1), (1.0, 0.0, 1), (1.0, 0.5, 0), (1.0, 0.5, 1, 0)]
)
def test_what_cannot_have_been_spent_is_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        PrivacySpending(*wrong)


@pytest.mark.parametrize("kind", ["full", "peft", "entropy-subset", "full+few-shot"])
def test_moon_is_refused_with_privacy_for_its_features_are_of_many_samples_in_one_run(kind):
    with pytest.raises(KindError, match="features come from runs of many|not take the term dp-sgd"):
        registry.make(kind, {"terms": {"moon": {"mu": 1.0}, "dp-sgd": {"epsilon": 5.0}}})
    assert dp_settings(
        registry.make("full", {"terms": {"fedprox": {"mu": 1.0}, "dp-sgd": {"epsilon": 5.0}}})
    ) == DpSgd(epsilon=5.0)


def test_a_budget_that_no_noise_keeps_is_refused():
    with pytest.raises(ValueError, match=r"no noise keeps 10000 steps at rate 1 within epsilon 0\.001"):
        noise_multiplier(DpSgd(epsilon=1e-3, delta=1e-12, rounds=1000), 10, 64, 10)


def test_without_the_accountant_it_is_said_what_to_install(monkeypatch):
    for cached in (accountant.least_noise, accountant._epsilon):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(PrivacyUnavailable, match=r"pip install 'device-runtime\[privacy\]'"):
        noise_multiplier(DpSgd(), *SMALL)
    with pytest.raises(PrivacyUnavailable):
        total_epsilon([PrivacySpending(1.0, 1.0, 1)], 1e-3)
    assert total_epsilon([], 1e-3) == 0


class Still:
    """A model of one tensor whose gradient is 0, whatever it is shown: all that moves it is noise."""

    width = 20_000

    def __init__(self):
        self.manifest = SimpleNamespace(graphs={"train.all": SimpleNamespace(extras=())})
        self.params, self.grads = (Flat([TensorSpec("w", (self.width,))]) for _ in range(2))
        self.statistics = Flat([])

    def trainer(self, tunable, objective, batch=0):
        return self

    def loss_and_grads(self, x, y, extras):
        return 0.0


def test_what_is_sent_has_the_noise_that_was_accounted_for(run):
    """7 steps of lr 0.5 on the noise of sum / lot: deviation 0.5 * sqrt(7) * sigma * 0.7 / 16."""
    dp = DpSgd(max_norm=0.7, rounds=3)
    event = dp.round(100, 16, 1)
    assert event.steps == 7
    plan = TrainingPlan(
        Sgd(0.5), 1, 16, np.arange(100), privacy=dp.privacy(100, 16, 1, np.random.default_rng(3))
    )
    data = LocalData(np.zeros((100, 1), np.float32), np.zeros(100, np.int64))
    moved = local_training.train(Still(), data, plan, run()).tensors["w"]
    expected = 0.5 * np.sqrt(7) * event.noise * 0.7 / 16
    assert moved.std() == pytest.approx(expected, rel=0.02)  # of 20,000 draws: 4 deviations of the estimate
    assert abs(moved.mean()) < 4 * expected / np.sqrt(Still.width)


@pytest.mark.slow
def test_a_private_update_tells_no_loss_and_is_repeated_by_its_noise_alone(model, digits, run):
    kind = FedAvg(epochs=1, terms=(DpSgd(rounds=2),))

    def sent(seed, noise):
        update = kind.train(
            model, digits, replace(run(seed=seed), noise=lambda: np.random.default_rng(noise))
        )
        assert np.isnan(update.train_loss) and update.num_examples == len(digits)
        return update.tensors["head.weight"].tobytes()

    assert sent(1, 5) == sent(2, 5) != sent(1, 6)
