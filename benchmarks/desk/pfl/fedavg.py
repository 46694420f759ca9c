import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from samples import CLIENTS, network, samples, test


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.module = network()

    def loss(self, x, y, is_eval=False):
        place = get_default_device()
        return torch.nn.functional.cross_entropy(self.module(x.to(place)), y.to(place))

    def metrics(self, x, y):
        return {}


class Accuracy(TrainingProcessCallback):
    def __init__(self):
        self.values = []

    @torch.no_grad()
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        place = get_default_device()
        x, y = (torch.from_numpy(part).to(place) for part in test())
        right = (model.pytorch_model.module(x).argmax(1) == y).float().mean().item()
        self.values.append(right)
        return False, Metrics([("accuracy", right)])


def dataset(user):
    return Dataset(tuple(map(torch.from_numpy, samples(user))), user_id=user)


def run(
    module=None,
    lr=0.1,
    algorithm=None,
    params=NNAlgorithmParams,
    central=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    callbacks=(),
    sampler=None,
    postprocessors=(),
):
    np.random.seed(0)
    module, accuracy = module or Network(), Accuracy()
    sampler = sampler or get_user_sampler("random", list(range(CLIENTS)))
    (algorithm or FederatedAveraging()).run(
        params(central_num_iterations=3, evaluation_frequency=9, train_cohort_size=10, val_cohort_size=0),
        SimulatedBackend(FederatedDataset(dataset, sampler), None, postprocessors=list(postprocessors)),
        PyTorchModel(module, torch.optim.SGD, central(module.parameters())),
        NNTrainHyperParams(local_num_epochs=5, local_learning_rate=lr, local_batch_size=32),
        callbacks=[accuracy, *callbacks],
        send_metrics_to_platform=False,
    )
    return accuracy.values


if __name__ == "__main__":
    print("accuracy", run())
