"""Federated evaluation: devices test the distributed model on samples of their own, and send sums.

The model stays as it is. Sums add up over devices, in the clear or masked, to the figures of all samples that
devices tested on (`figures`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.evaluation import evaluate_outputs
from device_runtime.models.training.heads import Evaluation
from device_runtime.profiles import Cost, DeviceProfile, Workload, predict
from device_runtime.strategies.interface.aggregator_half import KindResult, RoundModel
from device_runtime.strategies.interface.capabilities import Summable
from device_runtime.strategies.interface.device_half import LocalData, Run, Update
from device_runtime.strategies.interface.kind import KindInfo, Strategy
from device_runtime.strategies.settings import Setting
from device_runtime.strategies.statistics import held_out
from device_runtime.strategies.training.workload import forward_work

MEASURES = 5
"""Sums of each class or column: see `measure`."""

Sums = dict[str, NDArray[np.float64]]
"""rows (classes or columns, MEASURES), and totals (2,): the number of samples and the sum of their losses."""


@dataclass(frozen=True)
class FederatedEvaluation(
    Summable,
    Strategy[Sums],
    reveals="on how many samples of each class the model is right, or how far it is off each column",
):
    """Devices run the distributed model over samples of their own, and send sums of what it gets right.

    hold_out: the samples are those that the device would hold out of a training task with this
    `statistics.hold_out`: the same ones in every task, as long as its samples and its name are the same.
    """

    name: ClassVar[str] = "evaluation"
    about: ClassVar[KindInfo] = KindInfo(
        "nothing: one forward pass of the samples that it tests on",
        "counts of right answers by class, or sums of errors by column",
        "federated evaluation (Wang et al. 2019, Federated evaluation of on-device personalization)",
    )
    summed: ClassVar[tuple[str, ...]] = ("rows", "totals")
    hold_out: Annotated[
        float,
        Setting(
            "Share of its samples that a device tests on, as statistics.hold_out of a training task; 1: all.",
            0.2,
            more_than=0,
            at_most=1,
        ),
    ] = 0.1

    def infeasible_reason(self, workload: Workload) -> str:
        samples = workload.samples
        if samples * self.hold_out >= 1:
            return ""
        return f"has {samples} samples, of which a share of {self.hold_out:g} is none"

    def cost(self, workload: Workload, profile: DeviceProfile) -> Cost:
        rows = workload.columns or workload.labels
        work = forward_work(workload, int(workload.samples * self.hold_out), MEASURES * rows + 2)
        return predict(profile, work, self.name)

    def train(self, model: DeviceModel, data: LocalData, run: Run) -> Update:
        began, target = run.clock(), model.manifest.target
        test = data if self.hold_out == 1 else held_out.split_held_out(data, self.hold_out, run.device)[0]
        outputs = model.logits(test.x)
        run.pace(began, 1.0)
        rows = measure(target, outputs, test)
        loss = evaluate_outputs(target, outputs, test.x, test.y).eval_loss if len(test) else 0.0
        totals = np.array([len(test), loss * len(test)])
        tensors = {"rows": rows.astype(np.float32), "totals": totals.astype(np.float32)}
        return Update(self.name, tensors, len(test), float("nan"))

    def expected(self, manifest: Manifest) -> tuple[TensorSpec, ...]:
        rows = len(manifest.target.columns) or len(manifest.labels)
        return TensorSpec("rows", (rows, MEASURES)), TensorSpec("totals", (2,))

    def rejection_reason(self, update: Tensors, num_examples: int) -> str:
        """Reject sums that no `num_examples` samples can have: see `measure`."""
        rows, totals = update["rows"], update["totals"]
        if not all(np.isfinite(value).all() for value in update.values()):
            return "its sums are not finite"
        if totals[0] != num_examples:
            return f"its sums are of {totals[0]:g} samples, num_examples is {num_examples}"
        true, predicted, right, _, count = rows.T
        if count.any():  # of columns
            possible = (count == num_examples).all() and (rows[:, [0, 1, 3]] >= 0).all()
        else:
            counts = (true.sum(), predicted.sum()) in ((num_examples, num_examples), (0, 0))
            possible = counts and (right >= 0).all() and (right <= np.minimum(true, predicted)).all()
        return "" if possible else f"no {num_examples} samples have its sums"

    def start(self, model: RoundModel) -> Sums:
        return {spec.name: np.zeros(spec.shape) for spec in self.expected(model.manifest)}

    def fold(self, state: Sums, update: Update, weight: float) -> Sums:
        """Add sums; `weight` is ignored because counts are the weights."""
        return {name: total + update.tensors[name] for name, total in state.items()}

    def finish(self, state: Sums, model: RoundModel) -> KindResult:
        """Keeps the sums and their round, for `figures`; the model stays as it is."""
        memory = {**state, "round": np.array(model.round)}
        return KindResult(memory=memory, num_examples=float(state["totals"][0]))


def measure(target: TargetSpec, outputs: NDArray[np.float32], test: LocalData) -> NDArray[np.float64]:
    """Sums over samples, (classes or columns, MEASURES); outputs (n, outputs).

    Of a class: samples, samples taken for it, right ones, 0, 0. Of a flag: the same of its ones, then right
    answers, and samples. Of a column of values, as the graphs take it: errors, squared errors, targets,
    squared targets, and samples. Of a model that reconstructs its input: 0.
    """
    y = test.y
    if target.compared == "classes":
        classes, predicted = outputs.shape[1], outputs.argmax(axis=1)
        counts = [np.bincount(of, minlength=classes) for of in (y, predicted, y[predicted == y])]
        return np.stack([*counts, 0 * counts[0], 0 * counts[0]], axis=1).astype(np.float64)
    if target.compared == "input":
        return np.zeros((outputs.shape[1], MEASURES))
    own = outputs[:, : y.shape[1]].astype(np.float64)
    if target.compared == "flags":
        ones, true = own > 0, y > 0
        parts = [true, ones, ones & true, ones == true, np.ones_like(true)]
    else:
        parts = [np.abs(own - y), (own - y) ** 2, y, y.astype(np.float64) ** 2, np.ones_like(y)]
    return np.stack([part.sum(axis=0, dtype=np.float64) for part in parts], axis=1)


def figures(target: TargetSpec, memory: Tensors, number: int) -> Evaluation | None:
    """The figures of all samples that devices tested on in round `number`; None if none did.

    `memory` is what `finish` kept. Macro: the mean over classes with samples, or taken for; errors are in
    original units.
    """
    if not memory or int(memory["round"]) != number or not memory["totals"][0] > 0:
        return None
    samples, loss = memory["totals"].tolist()
    rows = np.asarray(memory["rows"], np.float64)
    base = Evaluation(float("nan"), loss / samples, round(samples), target.metric)
    if target.compared == "input":
        return base
    if target.compared == "values":
        return replace(base, **_of_values(target, rows))
    true, predicted, right = rows[:, 0], rows[:, 1], rows[:, 2]
    f1 = 2 * right / np.maximum(true + predicted, 1)
    if target.compared == "flags":
        accuracy = float(rows[:, 3].sum() / rows[:, 4].sum())
        return replace(base, eval_acc=accuracy, metrics={"f1-macro": float(f1.mean())})
    present = true + predicted > 0
    metrics = {
        "f1-macro": float(f1[present].mean()),
        "recall-macro": float((right / np.maximum(true, 1))[present].mean()),
    }
    return replace(base, eval_acc=float(right.sum() / true.sum()), metrics=metrics)


def _of_values(target: TargetSpec, rows: NDArray[np.float64]) -> dict[str, Any]:
    errors, squares, sums, squared, count = rows.T
    spread = squared - sums**2 / count
    shares = np.where(spread > 0, 1 - squares / np.where(spread > 0, spread, 1), 0)
    std = np.asarray(target.std, np.float64)
    metrics = {"mae": float((std * errors / count).mean())}
    metrics["rmse"] = float(np.sqrt((std**2 * squares / count).mean()))
    return {"eval_acc": float(shares.mean()), "metrics": metrics}
