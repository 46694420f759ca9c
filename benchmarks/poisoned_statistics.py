"""What one lying device of ten does to the served closed-form head, by lie, claimed size and robust rule.

    .venv/bin/python benchmarks/poisoned_statistics.py [--partition iid dirichlet] [--robust none median]
        [--liars 1] [--first 6] [--rounds 12]

Ten equal devices train on digits once, as the default task runs them. Class statistics do not change what is
trained, so that each lie is tried by merging the recorded updates again with the liar's statistics replaced:
in one round, or in every round from there on. Each false message passes the checks of the aggregator. The
figures are the worst over liars: points of test accuracy that the served model is below the one without the
lie at most, and for how many rounds by more than two points.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from device_runtime.aggregator.intake.check import UpdateOrigin, update_refusal
from device_runtime.aggregator.merging.merge_round import MergeTools
from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.training.evaluation import evaluate
from device_runtime.simulation.executors.job import Executor, PlainExecutor, Result, TrainingJob
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import PreparedRun, prepare, simulate
from device_runtime.simulation.scenarios.scenario import load
from device_runtime.strategies.interface.aggregator_half import CarriedState, RoundModel
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import variant_named
from device_runtime.strategies.merging.folding import Folding
from device_runtime.strategies.robust import Robust, Screen
from device_runtime.strategies.statistics import class_statistics, kind_statistics
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import MOST_NORM, ClassSums

DEVICES = 10
"""The fleet."""
LARGEST = 1_000_000
"""The largest number of samples that a default task lets a device claim (`max_num_examples`)."""
BACK = 0.02
"""The accuracy within which the served model counts as unharmed."""
Lie = Callable[[Statistics, np.random.Generator], Statistics]
"""Makes false statistics of true ones."""


def with_means(sent: Statistics, means: NDArray[np.float64]) -> Statistics:
    """The same counts and scatter with other class means (classes, width)."""
    counts, old = sent.sums.counts, sent.sums.sums / np.maximum(1, sent.sums.counts)[:, None]
    has = (counts > 0)[:, None]
    sums = ClassSums(means * counts[:, None] * has, counts)
    if not sent.moment_sums.counts.any():
        return replace(sent, sums=sums)
    scatter = sent.moments - (old * counts[:, None]).T @ old
    moments = scatter + (means * has * counts[:, None]).T @ (means * has)
    return Statistics(sums, sums, moments, sent.right)


def means_of(sent: Statistics) -> NDArray[np.float64]:
    """Class means (classes, width); 0 for a class without samples."""
    means: NDArray[np.float64] = sent.sums.sums / np.maximum(1, sent.sums.counts)[:, None]
    return means


def of_all_classes(sent: Statistics) -> Statistics:
    """The samples divided evenly among all classes; a class that the device lacks gets its overall mean."""
    labels, total = len(sent.sums.counts), max(int(sent.sums.counts.sum()), len(sent.sums.counts))
    means, overall = means_of(sent), sent.sums.sums.sum(axis=0) / sent.sums.counts.sum()
    means[sent.sums.counts == 0] = overall
    scatter = sent.moments - (means_of(sent) * sent.sums.counts[:, None]).T @ means_of(sent)
    counts = np.full(labels, total // labels)
    sums = ClassSums(means * counts[:, None], counts)
    moments = scatter * counts.sum() / sent.sums.counts.sum() + (means * counts[:, None]).T @ means
    return Statistics(sums, sums, moments, sent.right)


def turned(sent: Statistics, rng: np.random.Generator) -> Statistics:
    return with_means(sent, -means_of(sent))


def huge(sent: Statistics, rng: np.random.Generator) -> Statistics:
    means = means_of(sent)
    return with_means(sent, means * 0.5 * MOST_NORM / np.linalg.norm(means, axis=1).max())


def swapped(sent: Statistics, rng: np.random.Generator) -> Statistics:
    own = sent.sums.present
    means = means_of(sent)
    means[own] = means[np.roll(own, 1)]
    return with_means(sent, means)


def two_swapped(sent: Statistics, rng: np.random.Generator) -> Statistics:
    """The means of its two largest classes are swapped, all others are true."""
    own = np.argsort(-sent.sums.counts, kind="stable")[: min(2, len(sent.sums.present))]
    means = means_of(sent)
    means[own] = means[own[::-1]]
    return with_means(sent, means)


def true(sent: Statistics, rng: np.random.Generator) -> Statistics:
    return sent


def swapped_everywhere(sent: Statistics, rng: np.random.Generator) -> Statistics:
    whole = of_all_classes(sent)
    return with_means(whole, np.roll(means_of(whole), 1, axis=0))


def random(sent: Statistics, rng: np.random.Generator) -> Statistics:
    whole = of_all_classes(sent)
    means = means_of(whole)
    drawn = rng.normal(size=means.shape)
    length = np.linalg.norm(means, axis=1, keepdims=True)
    return with_means(whole, drawn * 3 * length / np.linalg.norm(drawn, axis=1, keepdims=True))


def shrunk(sent: Statistics, rng: np.random.Generator) -> Statistics:
    small = 1e-3
    return Statistics(
        ClassSums(small * sent.sums.sums, sent.sums.counts),
        ClassSums(small * sent.moment_sums.sums, sent.moment_sums.counts),
        small**2 * sent.moments,
        sent.right,
    )


def inflated_moments(sent: Statistics, rng: np.random.Generator) -> Statistics:
    return replace(sent, moments=sent.moments * 1e3)


def one_class(sent: Statistics, rng: np.random.Generator) -> Statistics:
    """All samples are said to be of its largest class, at their overall mean."""
    label, total = int(sent.sums.counts.argmax()), int(sent.sums.counts.sum())
    sums = np.zeros_like(sent.sums.sums)
    sums[label] = sent.sums.sums.sum(axis=0)
    counts = np.zeros_like(sent.sums.counts)
    counts[label] = total
    sums_ = ClassSums(sums, counts)
    return Statistics(sums_, sums_, sent.moments, sent.right)


def hidden_directions(sent: Statistics, rng: np.random.Generator) -> Statistics:
    """Scatter along the differences of its class means, which the head would then ignore."""
    means, counts = means_of(sent), sent.sums.counts
    own = sent.sums.present
    apart = means[own] - means[own].mean(axis=0)
    return replace(sent, moments=sent.moments + 30.0 * counts.sum() * apart.T @ apart)


LIES: Mapping[str, Lie] = {
    "means turned round": turned,
    "huge means": huge,
    "labels swapped": swapped,
    "labels swapped of two classes": two_swapped,
    "labels swapped, all classes claimed": swapped_everywhere,
    "random means, all classes claimed": random,
    "all shrunk to a thousandth": shrunk,
    "second moments times 1000": inflated_moments,
    "all samples in one class": one_class,
    "scatter that hides differences": hidden_directions,
    "nothing but the size": true,
}
SIZES = {"honest": 1.0, "10 times": 10.0, "largest": float("inf")}


@dataclass
class RecordedRound:
    """The base of a round and its updates, by device."""

    base: Tensors
    updates: list[tuple[str, Update]] = field(default_factory=list)


class Recording(NullObserver):
    """Keeps the base and the updates of every round; wraps an executor to see the bases."""

    name = "recording"

    def __init__(self, inner: Executor) -> None:
        self.rounds: list[RecordedRound] = []
        self.lines: list[SimulatedRound] = []
        self._inner = inner

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        if len(self.rounds) == len(self.lines):
            base = {name: value.copy() for name, value in bases[jobs[0].base].items()}
            self.rounds.append(RecordedRound(base))
        return self._inner.run(bases, jobs)

    def trained(self, job: TrainingJob, update: Update) -> None:
        own = {name: np.array(value) for name, value in update.tensors.items()}
        self.rounds[-1].updates.append((job.name, replace(update, tensors=own, memory=None)))

    def closed(self, line: SimulatedRound) -> None:
        self.lines.append(line)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class Attack:
    """A lie of one device: the size that it claims, and the rounds in which it lies."""

    device: str
    lie: Lie
    size: float
    rounds: range


class Replay:
    """Merges recorded rounds again, with the statistics of one device replaced by a lie."""

    def __init__(self, prepared: PreparedRun, rounds: Sequence[RecordedRound]) -> None:
        self._prepared, self._rounds = prepared, rounds
        task = prepared.scenario.task
        self._kinds = {kind.name: kind for kind in task.kinds}
        self._tools = MergeTools(prepared.inputs.bundles)
        self._model = open_model(prepared.inputs.bundle)
        self._manifest = prepared.inputs.bundle.manifest
        self._done: dict[str, list[tuple[float, CarriedState]]] = {}
        self._x, self._y = self._manifest.input.prepare(prepared.data.test_x), prepared.data.test_y

    def accuracies(self, rule: str, attack: Attack | None) -> NDArray[np.float64]:
        """The served model's accuracy after each round; rounds before the lie are merged once a rule."""
        done = self._done.get(rule, []) if attack is None else self._done[rule][: attack.rounds.start - 1]
        states = list(done)
        for number in range(len(states) + 1, len(self._rounds) + 1):
            carried = states[-1][1] if states else CarriedState()
            states.append(self._merged(rule, attack, number, carried))
        if attack is None:
            self._done[rule] = states
        return np.array([accuracy for accuracy, _ in states])

    def _merged(
        self, rule: str, attack: Attack | None, number: int, carried: CarriedState
    ) -> tuple[float, CarriedState]:
        """The accuracy after one round, and the state for the next."""
        recording, task = self._rounds[number - 1], self._prepared.scenario.task
        model = RoundModel(self._manifest, recording.base, number, task.round_seed(number), tools=self._tools)
        kinds = {name: kind.strategy for name, kind in self._kinds.items()}
        updates = [
            (device, self._lie(attack, device, update, number)) for device, update in recording.updates
        ]
        sizes = [
            kind_statistics.most_samples(
                variant_named(kinds[update.kind], update.variant), update.num_examples
            )
            for _, update in updates
        ]
        folding = Folding(kinds, model, carried, task.server)
        with Screen(folding, Robust(rule), sizes=sizes) as screen:  # type: ignore[arg-type]
            for device, sent in updates:
                screen.add(sent, self._kinds[sent.kind].weight_of(sent), device)
            merged, _ = screen.merged()
        self._model.load(merged.closed_form or merged.served)
        return evaluate(self._model, self._x, self._y).eval_acc, merged.carried

    def _lie(self, attack: Attack | None, device: str, update: Update, number: int) -> Update:
        if attack is None or device != attack.device or number not in attack.rounds:
            return update
        kind = self._kinds[update.kind]
        strategy = variant_named(kind.strategy, update.variant)
        request = kind_statistics.statistics_of(strategy)
        rest, sent = class_statistics.split_statistics(update.tensors)
        if request is None or not sent:
            return update
        shape = class_statistics.shape_of(request, self._manifest)
        rng = np.random.default_rng(number)
        lies = attack.lie(class_statistics.decode(sent, shape), rng)
        times = min(attack.size, 0.99 * LARGEST / lies.sums.counts.sum())
        counts = np.floor(lies.sums.counts * times).astype(np.int64)
        grown = counts.sum() / lies.sums.counts.sum()
        sums = lies.sums.recounted(counts)
        lied = Statistics(
            sums, sums if lies.moment_sums.counts.any() else lies.moment_sums, lies.moments * grown
        )
        content = {**rest, **class_statistics.encode(replace(lied, right=lies.right), request)}
        message = replace(update, tensors=content, num_examples=max(update.num_examples, int(counts.sum())))
        origin = UpdateOrigin(kind, strategy, self._manifest, self._rounds[number - 1].base)
        if why := update_refusal(message.tensors, message.num_examples, origin):
            raise SystemExit(f"the lie is refused before it counts: {why}")
        # an update that trains the extractor keeps its own weight: the statistics alone lie
        return (
            replace(message, num_examples=update.num_examples)
            if strategy.traits.trains_extractor
            else message
        )


def recorded(partition: str, rounds: int, seed: int) -> tuple[PreparedRun, Recording]:
    """A run of ten equal devices, with everything that they sent."""
    fleet = {"name": "alike", "groups": {"all": {"profile": "pi-5", "share": 1.0}}}
    data = {
        "source": "digits",
        "partition": partition,
        **({"alpha": 0.3} if partition == "dirichlet" else {}),
    }
    scenario = load(
        "uniform",
        {
            "fleet": fleet,
            "devices": DEVICES,
            "data": data,
            "task": {"rounds": rounds, "round_deadline_s": 1000.0},
        },
    )
    prepared = prepare(scenario, seed)
    recording: list[Recording] = []

    def executor(inputs: Any) -> Executor:
        recording.append(Recording(PlainExecutor(inputs)))
        return recording[0]

    class Forward(NullObserver):
        def trained(self, job: TrainingJob, update: Update) -> None:
            recording[0].trained(job, update)

        def closed(self, line: SimulatedRound) -> None:
            recording[0].closed(line)

    simulate(prepared, executor, Forward())
    return prepared, recording[0]


def harm(honest: NDArray[np.float64], lied: NDArray[np.float64], first: int) -> tuple[float, int]:
    """The largest loss of accuracy, and in how many rounds from `first` on it is more than BACK."""
    loss = (honest - lied)[first - 1 :]
    return float(loss.max()), int((loss > BACK + 1e-9).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partition", nargs="+", default=["iid", "dirichlet"])
    parser.add_argument("--robust", nargs="+", default=["none", "median"])
    parser.add_argument("--liars", type=int, default=1, help="devices that are tried as the liar")
    parser.add_argument("--first", type=int, default=6, help="the round of the first lie")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    first = options.first
    once, always = range(first, first + 1), range(first, options.rounds + 1)
    for partition in options.partition:
        prepared, recording_ = recorded(partition, options.rounds, options.seed)
        replay = Replay(prepared, recording_.rounds)
        names = sorted({device for device, _ in recording_.rounds[0].updates})[: options.liars]
        honest = {rule: replay.accuracies(rule, None) for rule in options.robust}
        for rule, values in honest.items():
            print(f"{partition}, robust {rule}, nobody lies:", " ".join(f"{100 * v:.1f}" for v in values))
        rows: list[list[Any]] = []
        for name, lie in LIES.items():
            for size, times in SIZES.items():
                row: list[Any] = [name, size]
                for rule in options.robust:
                    for when in (once, always):
                        attacks = [Attack(device, lie, times, when) for device in names]
                        lied = [replay.accuracies(rule, attack) for attack in attacks]
                        worst = [harm(honest[rule], values, first) for values in lied]
                        row += [f"{100 * max(w[0] for w in worst):.1f}", max(w[1] for w in worst)]
                rows.append(row)
        headers = ["lie", "claimed size"]
        for rule in options.robust:
            for when in ("one lie", "lies on"):
                headers += [f"{rule}, {when}: points", "rounds"]
        print(tabulate(rows, headers, disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
