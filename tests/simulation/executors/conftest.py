"""A world of digits for executors, jobs of every kind, and what makes two results the same."""

import numpy as np
import pytest

from models import tensors
from simulation.clients import Clients
from simulation.executors.job import Failed, Job, World
from simulation.executors.plain import Plain
from strategies import registry

SHORT = {"full": {"epochs": 1}, "entropy-subset": {"epochs": 1}, "few-shot": {"epochs": 2}}
DEVICES = 6


@pytest.fixture(scope="session")
def world(bundle) -> World:
    """Six devices of 40 digits together, of one to twelve each."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    parts = np.split(np.random.default_rng(3).permutation(len(raw.target))[:40], [1, 12, 19, 24, 33])
    return World(bundle, Clients.of(raw.images[:, None], raw.target.astype(np.int64), parts))


@pytest.fixture(scope="session")
def bases(bundle):
    """Two base models: the bundle's, and one with another head."""
    first = bundle.weights()
    return {
        "1": first,
        "4": first | {name: value * np.float32(0.5) for name, value in first.items() if "head" in name},
    }


def jobs_of(kind: str, count: int = DEVICES) -> list[Job]:
    """One for each device, from both bases in turn."""
    strategy = registry.make(kind, SHORT.get(kind))
    return [
        Job(i % DEVICES, f"pi-{i}", strategy, seed=77 + i // DEVICES, base=("1", "4")[i % 2])
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def every_kind() -> list[Job]:
    return [job for kind in registry.USUAL for job in jobs_of(kind)]


@pytest.fixture(scope="session")
def plainly(world, bases, every_kind):
    """What the plain executor makes of `every_kind`."""
    return same(Plain(world).run(bases, every_kind))


def same(results):
    """Everything of each result, as values that are equal only if every bit is."""
    return [
        result
        if isinstance(result, Failed)
        else (
            result.kind,
            list(result.tensors),
            tensors.encode(result.tensors),
            result.num_examples,
            repr(result.train_loss),
        )
        for result in results
    ]
