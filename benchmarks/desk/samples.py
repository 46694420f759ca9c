"""The samples and the network of all programs of the desk, which are not counted in their lines."""

import numpy as np
import torch

CLIENTS, CLASSES, FEATURES = 20, 4, 16
torch.set_num_threads(1)  # a worker of Ray that trains with several stands still on a busy machine


def samples(client: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A client's own, x float32 (n, 16) and y int64 (n,): clouds around a centre for each class."""
    rng = np.random.default_rng([1, client])
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    y = rng.choice(CLASSES, count, p=rng.dirichlet(np.ones(CLASSES)))
    return (centres[y] + rng.normal(size=(count, FEATURES))).astype(np.float32), y.astype(np.int64)


def everyone() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All clients' samples together, and the client of each."""
    parts = [samples(client) for client in range(CLIENTS)]
    x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    return x, y, np.repeat(np.arange(CLIENTS), [len(part[1]) for part in parts])


def test() -> tuple[np.ndarray, np.ndarray]:
    """Samples that no client has."""
    return samples(CLIENTS, 400)


def network() -> torch.nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
