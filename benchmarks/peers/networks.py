"""The networks in torch, and one user's epoch of SGD as fast as plain torch does it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from work import WORKS, Arrays, Job, Samples, Work


class Cnn(nn.Module):
    """conv32 - conv64 - pool - dense128, 3x3, no padding: 1,626,442 parameters for 3x32x32 and 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dense = nn.Linear(12544, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = functional.max_pool2d(x, 2).flatten(1)
        return self.head(functional.relu(self.dense(x)))


class Linear(nn.Module):
    """Logistic regression."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def built(work: str) -> nn.Module:
    """With some weights."""
    return Cnn() if work == "A" else Linear(WORKS[work].shape[0])


class Trainer:
    """A network whose parameters lie in one vector, `flat`, in the order of the work's weights."""

    def __init__(self, job: Job, work: Work) -> None:
        torch.set_num_threads(1)
        self._samples = Samples(job) if work.trains else None
        self._batch, self._lr = work.batch, job.lr
        self._module = built(job.work)
        named = dict(self._module.named_parameters())
        self._parameters = [named[name] for name in work.weights]
        self.flat = torch.empty(sum(p.numel() for p in self._parameters))
        self.views: Arrays = {}
        parts = self.flat.split([p.numel() for p in self._parameters])
        for name, parameter, part in zip(work.weights, self._parameters, parts, strict=True):
            parameter.data = part.view_as(parameter)
            self.views[name] = parameter.detach().numpy()

    def train(self, user: int, round_: int) -> None:
        """One epoch from what is in `flat`, which is changed in place."""
        if self._samples is None:
            return
        x, y = (torch.from_numpy(values) for values in self._samples.of(user, round_))
        for inputs, labels in zip(x.split(self._batch), y.split(self._batch), strict=True):
            loss = functional.cross_entropy(self._module(inputs), labels)
            slopes = torch.autograd.grad(loss, self._parameters)
            with torch.no_grad():
                torch._foreach_add_(self._parameters, slopes, alpha=-self._lr)
