"""Federated averaging in bare torch on one processor, without any framework: the yardsticks of gpu.py.

Samples, weights and their mean stay on the processor. A round trains the users of a cohort for one epoch of
SGD, one after another (`OneByOne`) or all at once (`Vmapped`), and ends with the mean of their tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


@dataclass(frozen=True)
class BareJob:
    """A network, the samples of all users, and how one trains on them.

    x (users, samples, *shape): uint8, to be multiplied by `scale`, or int64 token ids. y: (users, samples).
    batch_statistics: batch norms use those of a batch, and move the running ones.
    """

    module: nn.Module
    x: Tensor
    y: Tensor
    scale: float
    batch: int
    lr: float
    batch_statistics: bool
    precision: str = "float32"

    @property
    def device(self) -> torch.device:
        return self.x.device

    def prepared(self) -> nn.Module:
        """The module on the device, without dropout, as ours trains it."""
        module = self.module.to(self.device).eval()
        for part in module.modules():
            if isinstance(part, _BatchNorm):
                part.num_batches_tracked = None
                part.train(self.batch_statistics)
        return module

    def batches(self, users: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, each of x (users, batch, *shape) and y (users, batch), in random order."""
        samples = self.y.shape[1]
        order = torch.rand((len(users), samples), device=self.device).argsort(1)
        for rows in order.split(self.batch, 1):
            x, y = self.x[users[:, None], rows], self.y[users[:, None], rows]
            yield (x if x.dtype == torch.int64 else x.float() * self.scale), y

    @contextmanager
    def running(self) -> Iterator[None]:
        """Computes in the job's precision: float32, tf32 or bf16; the same for all peers."""
        short = self.precision == "tf32"
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32, cudnn.allow_tf32 = short, short
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before


class OneByOne:
    """Trains one user after another. All tensors of the network lie in one vector."""

    def __init__(self, job: BareJob) -> None:
        self._job, self._module = job, job.prepared()
        self._parameters = list(self._module.parameters())
        tensors = [*self._parameters, *self._module.buffers()]
        tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        self._flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        for tensor, part in zip(tensors, self._flat.split([t.numel() for t in tensors]), strict=True):
            tensor.data = part.view_as(tensor)
        self._base, self._sum = self._flat.clone(), torch.empty_like(self._flat)

    def round(self, cohort: Sequence[int]) -> None:
        self._sum.zero_()
        for user in torch.tensor([[user] for user in cohort], device=self._job.device):
            self._flat.copy_(self._base)
            for x, y in self._job.batches(user):
                with self._job.running():
                    loss = functional.cross_entropy(self._module(x[0]), y[0])
                slopes = torch.autograd.grad(loss, self._parameters)
                with torch.no_grad():
                    torch._foreach_add_(self._parameters, slopes, alpha=-self._job.lr)
            self._sum.add_(self._flat)
        torch.div(self._sum, len(cohort), out=self._base)


class Vmapped:
    """Trains all users of a cohort at once: each step is one call of `vmap` over their weights."""

    def __init__(self, job: BareJob) -> None:
        self._job, self._module = job, job.prepared()
        self._parameters = {name: value.detach() for name, value in self._module.named_parameters()}
        buffers = self._module.named_buffers()
        self._buffers = {name: value for name, value in buffers if value.is_floating_point()}
        self._grads = vmap(grad(self._loss))

    def _loss(self, free: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with self._job.running():
            return functional.cross_entropy(functional_call(self._module, {**free, **buffers}, (x,)), y)

    def round(self, cohort: Sequence[int]) -> None:
        k = len(cohort)
        free, buffers = (
            {name: value.expand(k, *value.shape).clone() for name, value in tensors.items()}
            for tensors in (self._parameters, self._buffers)
        )
        weights = list(free.values())
        for x, y in self._job.batches(torch.tensor(cohort, device=self._job.device)):
            slopes = self._grads(free, buffers, x, y)
            torch._foreach_add_(weights, [slopes[name] for name in free], alpha=-self._job.lr)
        self._parameters = {name: value.mean(0) for name, value in free.items()}
        self._buffers = {name: value.mean(0) for name, value in buffers.items()}
