"""The plain executor: the device's own code, one device after another."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.simulation.errors import ExecutorError
from device_runtime.simulation.executors.job import FailedJob, PlainExecutor, TrainingJob, run_of
from device_runtime.strategies.interface.device_half import Run
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg

from .conftest import jobs_of, same


@pytest.mark.parametrize("kind", registry.DEFAULT_KINDS)
def test_a_job_is_what_a_device_of_that_name_and_data_would_send(kind, inputs, bases):
    jobs = jobs_of(kind)
    results = [(result, dict(result.tensors)) for result in PlainExecutor(inputs).run(bases, jobs)]
    for job, (result, sent) in zip(jobs, results, strict=True):
        model = OnnxModel(inputs.bundle, bases[job.base])
        data = inputs.clients.local(job.device, inputs.bundle.manifest.input)
        run = Run(job.seed, job.name, clock=lambda: 0.0, upload_at=1.0)
        alone = job.strategy.train(model, data, run)
        assert tensors.encode(sent) == tensors.encode(alone.tensors)
        assert (result.num_examples, repr(result.train_loss)) == (alone.num_examples, repr(alone.train_loss))


def test_a_job_begins_with_what_its_device_kept_and_was_sent_and_ends_with_what_it_keeps(lesson):
    executor = PlainExecutor(lesson.inputs)
    for job in lesson.jobs:
        [update] = executor.run(lesson.bases, [job])
        model = OnnxModel(lesson.inputs.of(job.strategy.member), lesson.bases[job.base])
        data = lesson.inputs.clients.local(job.device, model.manifest.input)
        aside = lesson.bases[job.aside] if job.aside else {}
        run = Run(job.seed, job.name, lambda: 0.0, 1.0, memory=job.memory, aside=aside)
        alone = job.strategy.train(model, data, run)
        assert update.variant == job.strategy.variant
        assert tensors.encode(update.tensors) == tensors.encode(alone.tensors)
        assert (update.memory is None) == (alone.memory is None)
        if update.memory is not None:
            assert tensors.encode(update.memory) == tensors.encode(alone.memory)


def test_memory_and_what_is_beside_the_base_change_what_is_trained(lesson):
    """Of the second round: kinds that take neither are trained to the same bits without."""
    executor = PlainExecutor(lesson.inputs)
    second = [
        job for job in lesson.jobs if job.round == 2 and len(lesson.inputs.clients.indices(job.device)) > 1
    ]
    without = [replace(job, memory={}, aside="") for job in second]
    with_it, without_it = (same(executor.run(lesson.bases, jobs)) for jobs in (second, without))
    pairs = zip(second, with_it, without_it, strict=True)
    changed = {job.strategy.name for job, first_, other in pairs if first_ != other}
    assert changed == {"full", "full+few-shot"}


def test_a_result_s_memory_is_the_caller_s_own(lesson):
    first, second = (job for job in lesson.jobs[:2])
    executor = PlainExecutor(lesson.inputs)
    [update] = executor.run(lesson.bases, [first])
    before = tensors.encode(update.memory)
    list(executor.run(lesson.bases, [second]))
    assert tensors.encode(update.memory) == before


def test_noise_is_a_job_s_own_and_the_same_whenever_it_is_done():
    jobs = [TrainingJob(0, name, FedAvg(), seed, "1") for name in "ab" for seed in (1, 2)]
    drawn = [run_of(job).noise().random() for job in jobs]
    assert drawn == [run_of(job).noise().random() for job in jobs]
    assert len({*drawn, *(run_of(job).rng().random() for job in jobs)}) == 8


def test_a_member_that_is_not_there_is_named(inputs):
    with pytest.raises(ExecutorError, match="no member 'wrn-22-1'; it has none"):
        inputs.of("wrn-22-1")


def test_order_and_company_of_jobs_change_nothing(inputs, bases, every_kind, plainly):
    executor = PlainExecutor(inputs)
    back = same(executor.run(bases, every_kind[::-1]))
    assert back[::-1] == plainly
    assert same(executor.run(bases, every_kind[:1])) == plainly[:1]


def test_a_job_that_diverges_says_so_and_the_next_goes_on(inputs, bases):
    wild = TrainingJob(2, "pi-2", FedAvg(epochs=2, lr=1e30), seed=77, base="1")
    [calm] = jobs_of("class-means", 1)
    with np.errstate(all="ignore"):
        diverged, fine = PlainExecutor(inputs).run(bases, [wild, calm])
    assert isinstance(diverged, FailedJob)
    assert "non-finite" in diverged.why
    assert fine.kind == "class-means"
