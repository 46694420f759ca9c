"""What a checked job must end at: plain federated averaging in torch, in float64, one user after another."""

from __future__ import annotations

import time

import numpy as np
import torch
from networks import built
from torch.nn import functional
from work import WORKS, Arrays, Job, Samples, report, weights


def averaged(job: Job) -> Arrays:
    """The weights after all rounds, float64."""
    work, start = WORKS[job.work], weights(job)
    base = [torch.from_numpy(value).double() for value in start.values()]
    samples = Samples(job) if work.trains else None
    module = built(job.work).double()
    parameters = list(module.parameters())
    for round_, cohort in enumerate(job.cohorts()):
        sums = [torch.zeros_like(value) for value in base]
        for user in cohort if samples else ():
            with torch.no_grad():
                torch._foreach_copy_(parameters, base)
            x, y = (torch.from_numpy(values) for values in samples.of(user, round_))
            for inputs, labels in zip(x.double().split(work.batch), y.split(work.batch), strict=True):
                slopes = torch.autograd.grad(functional.cross_entropy(module(inputs), labels), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, slopes, alpha=-job.lr)
            with torch.no_grad():
                torch._foreach_add_(sums, parameters)
        base = [total / job.cohort for total in sums] if samples else base
    return {name: np.asarray(value) for name, value in zip(start, base, strict=True)}


def main() -> None:
    job = Job.read(__doc__)
    final = averaged(job)
    report(job, [time.perf_counter()], lambda: final, ("torch", "numpy"))


if __name__ == "__main__":
    main()
