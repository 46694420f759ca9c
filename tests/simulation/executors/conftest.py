"""Inputs of digits for executors, jobs of every kind, and what makes two results the same."""

from dataclasses import dataclass

import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.job import (
    ExecutorInputs,
    FailedJob,
    PlainExecutor,
    TrainingJob,
    base_key,
)
from device_runtime.strategies.interface.device_half import FEW_SHOT
from device_runtime.strategies.kinds import registry

SHORT = {"full": {"epochs": 1}, "entropy-subset": {"epochs": 1}, "few-shot": {"epochs": 2}}
DEVICES = 6


def six() -> Clients:
    """Six devices of 40 digits together, of one to twelve each."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    parts = np.split(np.random.default_rng(3).permutation(len(raw.target))[:40], [1, 12, 19, 24, 33])
    return Clients.of(raw.images[:, None], raw.target.astype(np.int64), parts)


@pytest.fixture(scope="session")
def inputs(bundle) -> ExecutorInputs:
    return ExecutorInputs(bundle, six())


@pytest.fixture(scope="session")
def bases(bundle):
    """Two base models: the bundle's, and one with another head."""
    first = bundle.weights()
    return {
        "1": first,
        "4": first | {name: value * np.float32(0.5) for name, value in first.items() if "head" in name},
    }


def jobs_of(kind: str, count: int = DEVICES) -> list[TrainingJob]:
    """One for each device, from both bases in turn."""
    strategy = registry.make(kind, SHORT.get(kind))
    return [
        TrainingJob(i % DEVICES, f"pi-{i}", strategy, seed=77 + i // DEVICES, base=("1", "4")[i % 2])
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def every_kind() -> list[TrainingJob]:
    return [job for kind in registry.DEFAULT_KINDS for job in jobs_of(kind)]


@pytest.fixture(scope="session")
def plainly(inputs, bases, every_kind):
    """What the plain executor makes of `every_kind`."""
    return same(PlainExecutor(inputs).run(bases, every_kind))


def same(results):
    """Everything of each result, as values that are equal only if every bit is."""
    return [
        result
        if isinstance(result, FailedJob)
        else (
            (result.kind, result.variant),
            list(result.tensors),
            tensors.encode(result.tensors),
            result.num_examples,
            repr(result.train_loss),
            None if result.memory is None else tensors.encode(result.memory),
        )
        for result in results
    ]


def assert_trained_together(executor, inputs, bases, jobs):
    """The executor's results are those of the plain one, to rounding; closes it."""
    try:
        together = [(result, dict(result.tensors)) for result in executor.run(bases, jobs)]
    finally:
        executor.close()
    for (result, trained), alone in zip(together, PlainExecutor(inputs).run(bases, jobs), strict=True):
        assert (result.kind, result.num_examples) == (alone.kind, alone.num_examples)
        for name, value in alone.tensors.items():
            np.testing.assert_allclose(trained[name], value, atol=2e-6)


@dataclass(frozen=True)
class Kept:
    """Inputs with a family; bases and the tensors sent with them; jobs that need more than their base."""

    inputs: ExecutorInputs
    bases: dict[str, Tensors]
    jobs: list[TrainingJob]


@pytest.fixture(scope="session")
def lesson(exported) -> Kept:
    """Two rounds of each kind; in the second devices have kept something, and one base of two is another.

    Device 0 has one sample: of its two classifiers one has no rows.
    """
    main, half = (Bundle.open(path) for path in (exported.tuned, exported.half))
    first, small = main.weights(), half.weights()
    head = {FEW_SHOT + name: first[name] + 1 for name in ("head.weight", "head.bias")}
    trained = main.manifest.names("all")
    again = first | {name: first[name] * np.float32(0.9) for name in trained if "head" not in name}
    bases = {"1": first, "2": again, "1/half": small, "2/half": small, "2//aside": head}
    learnt = {name: first[name] + np.float32(0.01) for name in trained}
    settings = {"epochs": 1, "batch": 8}
    kinds = [
        registry.make("full", {**settings, "terms": {"moon": {"mu": 1.0}}}),
        registry.make("full+few-shot", {**settings, "terms": {"fscprox": {"mu": 1.0, "anchor": "few-shot"}}}),
        registry.make("width-slice", {**settings, "members": ("half",)}),
        registry.make("few-shot", SHORT["few-shot"]),
    ]
    jobs = [
        TrainingJob(
            device,
            f"pi-{device}",
            kind,
            seed=77 + number,
            base=base_key(number, kind.member),
            memory=learnt if number == 2 and kind is kinds[0] and device % 2 else {},
            aside="2//aside" if number == 2 else "",
        )
        for number in (1, 2)
        for kind in kinds
        for device in range(3)
    ]
    return Kept(ExecutorInputs(main, six(), EngineSettings("onnxruntime"), {"half": half}), bases, jobs)


@pytest.fixture(scope="session")
def kept_plainly(lesson):
    """What the plain executor makes of the jobs of `kept`."""
    return same(PlainExecutor(lesson.inputs).run(lesson.bases, lesson.jobs))
