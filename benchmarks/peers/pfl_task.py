"""The part of pfl_runner.py that imports pfl, which joins its processes while it is imported."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from networks import built
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import Tensor
from torch.nn import functional
from work import SEED, WORKS, Arrays, Job, Samples, report, weights


class Echoing(FederatedAveraging):
    """Sends back what it was sent, untrained: as a difference to nothing."""

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> Any:
        return MappedVectorStatistics(dict(initial_model_state.items())), Metrics()

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Any, statistics: Any
    ) -> Any:
        statistics.average()
        model.set_parameters(statistics)
        return model, Metrics()


class Marks(TrainingProcessCallback):
    """When training began and each round ended, in seconds; and which round it is."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @property
    def round(self) -> int:
        return len(self.seconds) - 1

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.seconds.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.seconds.append(time.perf_counter())
        return False, Metrics()


class Users:
    """All users in turn, again and again: a round of a checked job has each of them once."""

    def __init__(self, users: int) -> None:
        self._users, self._next = users, -1

    def __call__(self) -> int:
        self._next = (self._next + 1) % self._users
        return self._next


class Network(torch.nn.Module):
    """With the loss and the metrics that pfl asks for."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        place = next(self.parameters()).device  # pfl takes a GPU for the weights where torch sees one
        return functional.cross_entropy(self.module(x.to(place)), y.to(place))

    def metrics(self, *batch: Tensor) -> dict[str, Any]:
        """Of the first round, which pfl always evaluates."""
        return {}


def dataset(job: Job, marks: Marks) -> FederatedDataset:
    samples = Samples(job) if WORKS[job.work].trains else None

    def user(number: int) -> Dataset:
        if samples is None:
            return Dataset((np.zeros((1, 1), np.float32),), user_id=number)
        x, y = samples.of(number, marks.round)
        return Dataset((torch.from_numpy(x), torch.from_numpy(y)), user_id=number)

    sampler = Users(job.users) if job.check else get_user_sampler("random", range(job.users))
    return FederatedDataset(user, sampler)


def run(job: Job) -> None:
    torch.set_num_threads(1)
    np.random.seed(SEED)  # pfl's way to have the same cohorts in all processes
    work, module, marks = WORKS[job.work], built(job.work), Marks()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights(job).items()})
    # what is taken from the central weights is a difference: with lr 1 its mean is added
    model = PyTorchModel(
        Network(module), partial(torch.optim.SGD, foreach=True), torch.optim.SGD(module.parameters(), lr=1.0)
    )
    backend = SimulatedBackend(training_data=dataset(job, marks), val_data=None)
    (FederatedAveraging() if work.trains else Echoing()).run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=work.batch or None
        ),
        callbacks=[marks],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("PFL_WORKER_RANK", "0")) == 0:
        values: Arrays = {name: value.detach().cpu().numpy() for name, value in module.named_parameters()}
        report(job, marks.seconds, lambda: values, ("pfl", "torch", "numpy"))
