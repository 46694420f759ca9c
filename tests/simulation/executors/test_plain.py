"""The plain executor: the device's own code, one device after another."""

import numpy as np
import pytest

from models import tensors
from models.onnx_engine import OnnxModel
from simulation.executors.job import Failed, Job
from simulation.executors.plain import Plain
from strategies import registry
from strategies.full import Full
from strategies.kind import Run

from .conftest import jobs_of, same


@pytest.mark.parametrize("kind", registry.USUAL)
def test_a_job_is_what_a_device_of_that_name_and_data_would_send(kind, world, bases):
    jobs = jobs_of(kind)
    results = [(result, dict(result.tensors)) for result in Plain(world).run(bases, jobs)]
    for job, (result, sent) in zip(jobs, results, strict=True):
        model = OnnxModel(world.bundle, bases[job.base])
        data = world.clients.local(job.device, world.bundle.manifest.input)
        run = Run(job.seed, job.name, clock=lambda: 0.0, deadline=1.0)
        alone = job.strategy.train(model, data, run)
        assert tensors.encode(sent) == tensors.encode(alone.tensors)
        assert (result.num_examples, repr(result.train_loss)) == (alone.num_examples, repr(alone.train_loss))


def test_order_and_company_of_jobs_change_nothing(world, bases, every_kind, plainly):
    executor = Plain(world)
    back = same(executor.run(bases, every_kind[::-1]))
    assert back[::-1] == plainly
    assert same(executor.run(bases, every_kind[:1])) == plainly[:1]


def test_a_job_that_diverges_says_so_and_the_next_goes_on(world, bases):
    wild = Job(2, "pi-2", Full(epochs=2, lr=1e30), seed=77, base="1")
    [calm] = jobs_of("class-means", 1)
    with np.errstate(all="ignore"):
        diverged, fine = Plain(world).run(bases, [wild, calm])
    assert isinstance(diverged, Failed)
    assert "non-finite" in diverged.why
    assert fine.kind == "class-means"
