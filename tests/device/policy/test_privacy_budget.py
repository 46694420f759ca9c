import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from device_runtime.device.policy import privacy_budget
from device_runtime.device.policy.privacy_budget import PrivacyGuard, SpentPrivacy, sample_digests
from device_runtime.models.data import stamp
from device_runtime.models.errors import DataError
from device_runtime.strategies.terms.accountant import (
    PrivacyBudget,
    PrivacyError,
    PrivacySpending,
    total_epsilon,
)
from device_runtime.strategies.terms.dp_sgd import BudgetExceeded, DpSgd, PrivacyLedger, dp_settings

DELTA = 1e-3
LIMIT = (PrivacyBudget(5.0, DELTA),)
ONE = PrivacySpending(8.0, 1.0, 10)
"""Whole batches, of which the accountant knows at once what they spend."""
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@dataclass(frozen=True)
class Kind:
    """As a kind of update: what privacy concerns of it."""

    dp: DpSgd | None = None
    batch: int = 64
    epochs: int = 5

    @property
    def terms(self):
        return (self.dp,) if self.dp else ()


def budget(path, *here):
    return SpentPrivacy(path, frozenset(here))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "privacy.json"


def epsilon(times):
    return total_epsilon([ONE] * times, DELTA)


def test_nothing_is_spent_at_first(path):
    empty = budget(path, A)
    assert (empty.epsilon(DELTA), empty.rounds) == (0.0, 0)
    assert not path.exists()


def test_what_was_spent_outlives_the_process(path):
    first = budget(path, A, B)
    first.spend(ONE, LIMIT)
    assert first.epsilon(DELTA) == epsilon(1)
    again = budget(path, A, B)
    again.spend(ONE, LIMIT)
    assert (again.epsilon(DELTA), again.rounds) == (epsilon(2), 2)


def test_a_round_that_would_exceed_the_budget_is_refused_and_spends_nothing(path):
    account = budget(path, A)
    fitting = next(n for n in range(1, 1000) if epsilon(n + 1) > 5)
    account.spend(PrivacySpending(ONE.noise, 1.0, ONE.steps * fitting, fitting), LIMIT)
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded) as refused:
        account.spend(ONE, LIMIT)
    message = f"epsilon would be {epsilon(fitting + 1):.4g} of 5 at delta 0.001 after {fitting} rounds"
    assert str(refused.value) == message
    assert path.read_bytes() == before
    assert account.epsilon(DELTA) == epsilon(fitting) <= 5


def test_every_limit_holds(path):
    strict = PrivacyBudget(epsilon(1), DELTA)
    account = budget(path, A)
    account.spend(ONE, (*LIMIT, strict))
    with pytest.raises(BudgetExceeded, match=f"of {epsilon(1):g} at"):
        account.spend(ONE, (*LIMIT, strict))
    account.spend(ONE, LIMIT)


def test_other_data_have_a_budget_of_their_own(path):
    budget(path, A).spend(ONE, LIMIT)
    other = budget(path, B)
    assert other.epsilon(DELTA) == 0
    other.spend(ONE, LIMIT)
    other.spend(ONE, LIMIT)
    assert (budget(path, A).rounds, budget(path, B).rounds) == (1, 2)


def test_a_sample_draws_from_the_same_budget_when_others_come_and_go(path):
    """A in rounds 1 and 2, B in 2 and 3, C in 3: any data with A or B has spent two rounds, C alone one."""
    for here in ((A,), (A, B), (B, C)):
        budget(path, *here).spend(ONE, LIMIT)
    for here, rounds in (((A,), 2), ((B,), 2), ((C,), 1), ((A, C), 2), ((b"d" * 16,), 0)):
        assert budget(path, *here).rounds == rounds
        assert budget(path, *here).epsilon(DELTA) == epsilon(rounds)
    assert SpentPrivacy(path).rounds == 2  # of all that are known


def test_one_new_sample_does_not_hide_what_the_others_spent(path):
    budget(path, A).spend(PrivacySpending(ONE.noise, 1.0, 10_000), (PrivacyBudget(1e6, DELTA),))
    with pytest.raises(BudgetExceeded):
        budget(path, A, B).spend(ONE, LIMIT)
    budget(path, B).spend(ONE, LIMIT)


def test_samples_with_the_same_past_are_kept_together(path):
    budget(path, A).spend(ONE, LIMIT)
    budget(path, B).spend(ONE, LIMIT)
    groups = privacy_budget._read(path)
    assert [(group.samples, group.ledger) for group in groups] == [(frozenset({A, B}), PrivacyLedger((ONE,)))]


KILLED = """
import os, signal
from pathlib import Path
from device_runtime.device.policy.privacy_budget import SpentPrivacy
from device_runtime.strategies.terms.accountant import PrivacyBudget, PrivacySpending
budget = SpentPrivacy(Path({path!r}), frozenset([b"a" * 16]))
budget.spend(PrivacySpending(8.0, 1.0, 10), [PrivacyBudget(5.0, 1e-3)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_may_have_been_spent_counts_after_a_kill_before_training(path):
    ended = subprocess.run([sys.executable, "-c", KILLED.format(path=str(path))])
    assert ended.returncode == -signal.SIGKILL
    assert budget(path, A).epsilon(DELTA) == epsilon(1)


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_what_was_there_and_training_does_not_begin(path, monkeypatch, at):
    budget(path, A).spend(ONE, LIMIT)

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if at == "fsync" else (Path, "replace")), fails)
    crashed = budget(path, A)
    with pytest.raises(OSError, match="No space"):
        crashed.spend(ONE, LIMIT)
    assert crashed.rounds == 1
    with pytest.raises(PrivacyError, match="cannot record the privacy spent: .*No space"):
        PrivacyGuard(lambda: crashed).before(Kind(DpSgd()), 10)
    monkeypatch.undo()
    assert budget(path, A).rounds == 1


def test_the_file_is_whole_on_disk_before_it_takes_its_place(path, monkeypatch):
    order = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("sync"), sync(handle)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (order.append("replace"), replace(old, new)))
    budget(path, A).spend(ONE, LIMIT)
    assert order == ["sync", "replace", "sync"]  # the file; its name; the folder


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"version":1,"groups":[{"samples":"!","events":[]}]}', b"[]"]
)
def test_a_damaged_file_is_no_new_budget(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"privacy\.json: what was spent .* cannot be read"):
        budget(path, A)


def test_a_file_of_another_version_is_left_alone(path):
    path.write_bytes(b'{"version":2,"groups":[]}')
    with pytest.raises(DataError, match=r"is of version 2, this software knows 1"):
        budget(path, A)


def test_samples_are_known_by_what_is_stored_whatever_their_file_order_and_label(tmp_path):
    x = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    np.savez(tmp_path / "one" / "all.npz", x=x, y=np.zeros(6, int))
    np.savez(tmp_path / "two" / "b.npz", x=x[3:], y=np.ones(3, int))
    np.savez(tmp_path / "two" / "a.npz", x=x[2::-1], y=np.ones(3, int))
    digests = sample_digests(tmp_path / "one")
    assert len(digests) == 6 and digests == sample_digests(tmp_path / "two")
    np.savez(tmp_path / "one" / "all.npz", x=np.concatenate([x[:2], x[:2], x[5:] + 100]), y=np.zeros(5, int))
    assert len(sample_digests(tmp_path / "one")) == 3
    assert len(sample_digests(tmp_path / "one") & digests) == 2


def test_equal_bytes_of_another_form_are_another_sample(tmp_path):
    for name, x in (("a", np.zeros((1, 4), np.uint8)), ("b", np.zeros((1, 2, 2), np.uint8)), ("c", [[0.0]])):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.zeros(1, int))
    assert len(sample_digests(tmp_path)) == 3


def test_a_file_that_cannot_be_read_is_nobody(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 no zip at all")
    assert sample_digests(tmp_path) == frozenset()


def test_nothing_is_spent_on_nobody(path):
    with pytest.raises(PrivacyError, match="none of the samples can be read"):
        budget(path).spend(ONE, LIMIT)
    assert not path.exists()


def test_without_an_owner_s_limit_unprotected_kinds_go_on(path):
    guard = PrivacyGuard(lambda: budget(path, A))
    assert guard.forbidden_reason(Kind(), 10) == ""
    guard.before(Kind(), 10)
    assert np.isnan(guard.epsilon_spent(Kind()))
    assert not path.exists()


def test_with_an_owner_s_limit_nothing_unprotected_is_sent(path):
    guard = PrivacyGuard(lambda: budget(path, A), PrivacyBudget(5.0, 1e-3))
    assert (
        guard.forbidden_reason(Kind(), 10)
        == "is not private, and the owner asks for epsilon 5 at delta 0.001"
    )
    assert guard.forbidden_reason(object(), 10).startswith("is not private")


@pytest.mark.parametrize("privacy", [DpSgd(epsilon=8.0, delta=1e-3), DpSgd(epsilon=5.0, delta=1e-2)])
def test_a_task_that_asks_for_less_privacy_than_the_owner_allows_is_refused(path, privacy):
    guard = PrivacyGuard(lambda: budget(path, A), PrivacyBudget(5.0, 1e-3))
    message = f"asks for {privacy.limit}, the owner allows epsilon 5 at delta 0.001"
    assert guard.forbidden_reason(Kind(privacy), 10) == message


def test_a_guard_lets_the_planned_rounds_pass_and_no_more(path):
    kind = Kind(DpSgd(rounds=3))
    for done in range(3):
        guard = PrivacyGuard(lambda: budget(path, A), PrivacyBudget(5.0, 1e-3))
        assert guard.forbidden_reason(kind, 10) == ""
        guard.before(kind, 10)
        assert guard.epsilon_spent(kind) == total_epsilon(
            [dp_settings(kind).round(10, 64, 5)] * (done + 1), DELTA
        )
    assert 4.9 < guard.epsilon_spent(kind) <= 5
    assert guard.forbidden_reason(kind, 10).startswith("epsilon would be 5.")
    assert guard.forbidden_reason(kind, 10).endswith("of 5 at delta 0.001 after 3 rounds")
    with pytest.raises(BudgetExceeded):
        guard.before(kind, 10)


def test_another_task_on_the_same_data_draws_from_the_same_budget(path):
    first, second = Kind(DpSgd(rounds=1)), Kind(DpSgd(epsilon=4.0, rounds=1, max_norm=0.1), batch=32)
    PrivacyGuard(lambda: budget(path, A)).before(first, 10)
    assert "of 4 at delta 0.001 after 1 round" in PrivacyGuard(lambda: budget(path, A)).forbidden_reason(
        second, 10
    )
    assert PrivacyGuard(lambda: budget(path, B)).forbidden_reason(second, 10) == ""


def test_the_owner_s_limit_is_over_all_tasks(path):
    guard = PrivacyGuard(lambda: budget(path, A), PrivacyBudget(5.0, 1e-3))
    guard.before(Kind(DpSgd(epsilon=3.0, rounds=1)), 10)
    assert "of 3 at" in guard.forbidden_reason(Kind(DpSgd(epsilon=3.0, rounds=1)), 10)
    assert guard.forbidden_reason(Kind(DpSgd(epsilon=5.0, rounds=10)), 10) == ""


def test_a_device_s_guard_reads_its_samples_and_its_file_when_a_private_kind_comes(tmp_path, path):
    x = np.arange(8, dtype=np.uint8).reshape(2, 4)
    guard = PrivacyGuard.of(tmp_path, tmp_path / "data.npz")
    assert guard.forbidden_reason(Kind(), 2) == ""  # there is no such file yet
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(2, int))
    kind = Kind(DpSgd())
    guard.before(kind, 2)
    assert (
        PrivacyGuard.of(tmp_path, tmp_path / "data.npz").epsilon_spent(kind) == guard.epsilon_spent(kind) > 0
    )
    assert SpentPrivacy(path, sample_digests(tmp_path / "data.npz")).rounds == 1


@pytest.mark.parametrize("change", ["removed", "replaced", "added"])
def test_samples_that_went_after_they_were_loaded_are_not_trained_on_unaccounted(tmp_path, change):
    """They would be in memory still; one that was added is accounted for, though nothing is trained on it."""
    data, kind = tmp_path / "data", Kind(DpSgd())
    data.mkdir()
    for name in "ab":
        np.savez(data / f"{name}.npz", x=np.full((5, 2), ord(name)), y=np.zeros(5, int))
    guard = PrivacyGuard.of(tmp_path, data, loaded=stamp(data))
    if change == "removed":
        (data / "b.npz").unlink()
    else:
        np.savez(data / f"{'b' if change == 'replaced' else 'c'}.npz", x=np.ones((7, 2)), y=np.zeros(7, int))
    refusal = "" if change == "added" else f"samples in {data} were changed or removed since they were loaded"
    assert guard.forbidden_reason(kind, 10).startswith(refusal)
    assert bool(guard.forbidden_reason(kind, 10)) == bool(refusal)


def test_a_damaged_file_keeps_private_kinds_from_being_trained(tmp_path, path):
    path.write_bytes(b"{")
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 4)), y=np.zeros(1, int))
    guard = PrivacyGuard.of(tmp_path, tmp_path / "data.npz")
    assert "cannot be read" in guard.forbidden_reason(Kind(DpSgd()), 1)
    with pytest.raises(PrivacyError, match="cannot be read"):
        guard.before(Kind(DpSgd()), 1)
    assert guard.forbidden_reason(Kind(), 1) == ""


def test_a_guard_without_the_accountant_says_what_to_install(path, monkeypatch):
    monkeypatch.setattr("device_runtime.strategies.terms.accountant._accounting", _missing)
    fresh = Kind(DpSgd(epsilon=4.321))
    assert "pip install" in PrivacyGuard(lambda: budget(path, A)).forbidden_reason(fresh, 10)


def _missing():
    raise PrivacyError("pip install 'device-runtime[privacy]'")


def test_a_budget_that_no_noise_keeps_is_a_reason_too(path):
    kind = Kind(DpSgd(epsilon=1e-3, delta=1e-12, rounds=1000))
    assert (
        PrivacyGuard(lambda: budget(path, A))
        .forbidden_reason(kind, 10)
        .startswith("no noise keeps 5000 steps")
    )
