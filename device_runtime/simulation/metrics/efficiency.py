"""What learning cost, as the papers count it."""

from __future__ import annotations

from math import nan


def learning_efficiency(best_accuracy: float, train_seconds: float) -> float:
    """Best test accuracy (0 to 1) by the seconds of local training of all participants together, per second.

    Thesis 002, section 6.5 (figures 6.12 and 6.15). nan when nobody trained.
    """
    return best_accuracy / train_seconds if train_seconds > 0 else nan


def analytic_bytes(params_sent: int, devices: int, rounds: int, participation: float) -> float:
    """Both ways, float32: 2 * params_sent * 4 * K * R * participation (thesis 000, A.1.1, equations 8 and 9).

    It takes what comes down to be as large as what goes up, and knows no headers, hashes or retries.
    """
    return 2.0 * params_sent * 4 * devices * rounds * participation
