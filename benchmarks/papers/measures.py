"""The measures that columns of tables may have, and the reading of printed cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isnan, nan

from device_runtime.simulation.compare.figures import (
    BYTES,
    JOULE,
    LATEST,
    TIMES,
    ComparisonTerms,
    FinishedRun,
    Units,
    figures,
)
from device_runtime.simulation.history.metrics import (
    CLOSED_FORM_HEAD,
    NOTHING_UNHEARD,
    SERVED,
    TRAINED_HEAD,
    Axis,
    Model,
    accuracy,
    learning_efficiency,
)
from device_runtime.simulation.report.table import PASSES, PERCENT, PLAIN

PER_HOUR: Units = (("%/h", 0.01 / 3600),)


@dataclass(frozen=True)
class MeasuredRun:
    """A run and what it is compared with: the column's runs with the same seed, by row, and the row `until`.

    With `classes` accuracies are means of the recalls of these classes, where the measure is `by_class`.
    """

    ran: FinishedRun
    rows: Mapping[str, FinishedRun]
    until: str = ""
    classes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A measure of a run; `value` is in plain units: shares, seconds, bytes, joules.

    `by_class`: it can be restricted to some classes.
    """

    title: str
    units: Units
    value: Callable[[MeasuredRun], float]
    by_class: bool = False

    @property
    def percent(self) -> bool:
        return self.units is PERCENT


def _figure(name: str) -> Callable[[MeasuredRun], float]:
    """A figure of the run alone, as in reports; only figures that do not depend on the comparison's terms.

    Costs are of closed rounds: kept runs of earlier versions have all costs of work that the end cut off.
    """

    def value(among: MeasuredRun) -> float:
        counts = replace(among.ran.tally, unheard=NOTHING_UNHEARD)
        return float(getattr(figures(replace(among.ran, tally=counts), ComparisonTerms(nan, nan, 1)), name))

    return value


def _late(model: Model) -> Callable[[MeasuredRun], float]:
    """The mean of the latest evaluations of one of a round's models."""

    def value(among: MeasuredRun) -> float:
        share = model.recall(among.classes) if among.classes else model.acc
        return accuracy(among.ran.rounds, value=share).smoothed(LATEST).final

    return value


def _at_equal(
    axis: Axis, spent: Callable[[FinishedRun], float], values: int = 1
) -> Callable[[MeasuredRun], float]:
    """Mean of the latest `values` accuracies of the model that is served when row `until` ends.

    "" is the row that ends first. The last model of a run stays served.
    """

    def value(among: MeasuredRun) -> float:
        if among.until and among.until not in among.rows:
            return nan
        looked_at = [among.rows[among.until]] if among.until else among.rows.values()
        curve = accuracy(among.ran.rounds, axis).smoothed(values)
        return curve.when(min(spent(each) for each in looked_at))

    return value


def _best_base(among: MeasuredRun) -> float:
    """The best accuracy of the model that is distributed, where another one is served."""
    accuracies = [line.base_eval_acc for line in among.ran.rounds if not isnan(line.base_eval_acc)]
    return max(accuracies, default=nan)


def _efficiency_after_round_1(among: MeasuredRun) -> float:
    """Learning efficiency without round 1, which belongs to pre-training (thesis 002, section 6.4)."""
    trained_s = sum(line.train_time_s for line in among.ran.rounds[1:])
    return learning_efficiency(accuracy(among.ran.rounds).best, trained_s)


def _energy(ran: FinishedRun) -> float:
    return sum(line.energy_j for line in ran.rounds)


def _loss_gap(among: MeasuredRun) -> float:
    """How far the test loss exceeds the loss in local training, in nats, in the last evaluated round."""
    evaluated = [line for line in among.ran.rounds if not isnan(line.eval_loss)]
    return evaluated[-1].eval_loss - evaluated[-1].train_loss if evaluated else nan


def _bytes_up_a_round(among: MeasuredRun) -> float:
    return sum(line.bytes_up for line in among.ran.rounds) / len(among.ran.rounds)


def _bytes(ran: FinishedRun) -> float:
    return sum(line.bytes_up + line.bytes_down for line in ran.rounds)


MEASURES: Mapping[str, Measure] = {
    "best_acc": Measure("best test accuracy", PERCENT, _figure("best_acc")),
    "final_acc": Measure("final test accuracy", PERCENT, _figure("final_acc")),
    "late_acc": Measure(f"test accuracy, mean of the last {LATEST}", PERCENT, _late(SERVED), by_class=True),
    "late_acc_trained": Measure(
        f"test accuracy with the trained head, mean of the last {LATEST}",
        PERCENT,
        _late(TRAINED_HEAD),
        by_class=True,
    ),
    "late_acc_closed_form": Measure(
        f"test accuracy with the closed-form head, mean of the last {LATEST}",
        PERCENT,
        _late(CLOSED_FORM_HEAD),
        by_class=True,
    ),
    "loss_gap": Measure("test loss over the loss in local training (nats)", PLAIN, _loss_gap),
    "best_base_acc": Measure("best test accuracy of the base model", PERCENT, _best_base),
    "acc_at_time": Measure(
        "accuracy at equal modelled time", PERCENT, _at_equal("time", lambda ran: ran.ends_s)
    ),
    "acc_at_energy": Measure("accuracy at equal modelled energy", PERCENT, _at_equal("energy", _energy)),
    "late_acc_at_time": Measure(
        f"accuracy at equal modelled time, mean of {LATEST}",
        PERCENT,
        _at_equal("time", lambda ran: ran.ends_s, LATEST),
    ),
    "late_acc_at_energy": Measure(
        f"accuracy at equal modelled energy, mean of {LATEST}", PERCENT, _at_equal("energy", _energy, LATEST)
    ),
    "late_acc_at_bytes": Measure(
        f"accuracy at equal bytes up and down, mean of {LATEST}",
        PERCENT,
        _at_equal("bytes", _bytes, LATEST),
    ),
    "learning_efficiency": Measure(
        "learning efficiency after round 1 (modelled seconds)", PER_HOUR, _efficiency_after_round_1
    ),
    "forward_passes": Measure("compute in F", PASSES, _figure("forward_passes")),
    "passes_analytic": Measure("compute by equations 10, 11", PASSES, _figure("passes_analytic")),
    "bytes_analytic": Measure("bytes by the papers' formula", BYTES, _figure("bytes_analytic")),
    "bytes_after_first": Measure(
        "bytes up and down after the first download", BYTES, _figure("bytes_after_first")
    ),
    "bytes_up": Measure("bytes up", BYTES, _figure("bytes_up")),
    "bytes_up_a_round": Measure("bytes up in a round", BYTES, _bytes_up_a_round),
    "bytes": Measure("bytes up and down", BYTES, lambda among: _bytes(among.ran)),
    "energy": Measure("energy (modelled)", JOULE, _figure("energy_j")),
    "time": Measure("virtual time (modelled)", TIMES, _figure("virtual_s")),
}


_NUMBER = re.compile(
    r"(?P<number>[0-9][0-9,]*(?:\.[0-9]+)?)(?:\s*×\s*10\^?\{?(?P<power>-?[0-9]+)\}?)?\s*(?P<unit>[GMk]B)?"
)
_BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, None: 1.0}


def value_of(cell: str) -> float:
    """The first number of a cell such as "62.95±2.84", "4.5×10^8" or "5.49MB"; nan where there is none."""
    match = _NUMBER.search(cell)
    if match is None:
        return nan
    number = float(match["number"].replace(",", "")) * 10.0 ** int(match["power"] or 0)
    return number * _BYTES[match["unit"]]
