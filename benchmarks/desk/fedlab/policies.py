from copy import deepcopy

import torch
from fedavg import run
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.utils import Aggregators, SerializationTool
from samples import CLIENTS, network


class Proximal(SGDSerialClientTrainer):
    mu = 0.1

    def train(self, model_parameters, train_loader):
        self.set_model(model_parameters)
        start = deepcopy(list(self._model.parameters()))
        for _ in range(self.epochs):
            for x, y in train_loader:
                far = sum(
                    (w - w0).square().sum() for w, w0 in zip(self._model.parameters(), start, strict=True)
                )
                loss = self.criterion(self._model(x), y) + self.mu / 2 * far
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return [self.model_parameters]


class Adam(SyncServerHandler):
    optimizer = None

    def global_update(self, buffer):
        mean = Aggregators.fedavg_aggregate([package[0] for package in buffer])
        if self.optimizer is None:
            self.values = torch.nn.Parameter(self.model_parameters.clone())
            self.optimizer = torch.optim.Adam([self.values], lr=0.01, betas=(0.9, 0.99), eps=1e-3)
        self.values.grad = self.values.data - mean
        self.optimizer.step()
        SerializationTool.deserialize_model(self._model, self.values.data)


print("fedavg", run())
print("fedprox", run(Proximal(network(), CLIENTS)))
print("fedadam", run(handler=Adam(network(), global_round=3, sample_ratio=0.5)))
