"""The executor of processes: equal to the plain one, whoever does the work and whoever dies over it."""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import TensorError
from device_runtime.models.errors import BundleError, EngineError, ModelError
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError
from device_runtime.simulation.executors import job as job_module
from device_runtime.simulation.executors import packing, processes_worker
from device_runtime.simulation.executors.job import FailedJob, PlainExecutor, TrainingJob
from device_runtime.simulation.executors.processes import Processes
from device_runtime.simulation.executors.processes_worker import SimulationWorker, WorkerInputs
from device_runtime.strategies.interface.device_half import FEW_SHOT
from device_runtime.strategies.interface.kind import ClassStatistics
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.zeroth_order import ZerothOrder
from device_runtime.strategies.statistics import class_statistics, kind_statistics

from .conftest import assert_trained_together, jobs_of, same

ENDLESS = FedAvg(epochs=1_000_000)
SCRIPT = """
import sys
from pathlib import Path
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.job import TrainingJob, ExecutorInputs
from device_runtime.simulation.executors.processes import Processes
from device_runtime.strategies.kinds.fedavg import FedAvg

bundle = Bundle.open(sys.argv[1])
executor = Processes(ExecutorInputs(bundle, Clients.open(Path(sys.argv[2]))), 2)
print(*executor.pids, flush=True)
job = TrainingJob(0, "pi-0", FedAvg(epochs=int(sys.argv[3])), 7, "1")
results = executor.run({"1": bundle.weights()}, [job] * 2)
next(results)
"""


@pytest.fixture(scope="module")
def executor(inputs):
    pool = Processes(inputs, 2)
    yield pool
    pool.close()


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def folders(scratch: Path) -> list[Path]:
    """Ours; ONNX Runtime leaves a file of its own there."""
    return list(scratch.glob("device-runtime-*"))


def gone(pid: int) -> bool:
    """Ended, or soon. Whoever should note that it has ended may not have done so."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_every_kind_of_update_is_the_plain_executors_bit_for_bit(executor, bases, every_kind, plainly):
    assert executor.name == "processes (2)"
    assert same(executor.run(bases, every_kind)) == plainly


@pytest.mark.slow
def test_class_statistics_come_with_updates_bit_for_bit(executor, inputs, bases):
    all_jobs = [job for kind in ("full", "few-shot", "zeroth-order") for job in jobs_of(kind)]
    statistics = ClassStatistics(numbers="int8", most_classes=1)
    jobs = [
        replace(
            job, strategy=kind_statistics.with_class_statistics(job.strategy, statistics), rare=(label, 3)
        )
        for job in all_jobs
        for label in (0, 1)
    ]
    plainly = same(PlainExecutor(inputs).run(bases, jobs))
    assert plainly[::2] != plainly[1::2]
    assert same(executor.run(bases, jobs)) == plainly
    assert all(class_statistics.ROWS in names for _, names, *_ in plainly)


@pytest.mark.slow
def test_families_memories_and_what_is_beside_the_base_are_the_plain_executors_bit_for_bit(
    lesson, kept_plainly, monkeypatch
):
    monkeypatch.setattr(
        "device_runtime.simulation.executors.processes.RESULTS_BYTES", 1
    )  # slots are used again
    executor = Processes(lesson.inputs, 2)
    try:
        assert same(executor.run(lesson.bases, lesson.jobs)) == kept_plainly
        results = executor.run(lesson.bases, lesson.jobs[::-1])
        results_ = same([next(results)])
        os.kill(executor.pids[0], signal.SIGKILL)
        assert (results_ + same(results))[::-1] == kept_plainly
    finally:
        executor.close()


@pytest.mark.slow
def test_what_is_beside_the_base_may_change_its_shape(lesson):
    """Shared memory that another layout has left is written anew."""
    executor = Processes(lesson.inputs, 1)
    job = next(job for job in lesson.jobs if job.aside and job.strategy.name == "full+few-shot")
    try:
        for beside in (lesson.bases[job.aside], {}, {f"{FEW_SHOT}head.bias": np.ones(10, np.float32)}):
            bases = lesson.bases | {job.aside: beside}
            assert same(executor.run(bases, [job])) == same(PlainExecutor(lesson.inputs).run(bases, [job]))
    finally:
        executor.close()


@pytest.mark.slow
def test_the_same_workers_give_the_same_again_in_another_order(executor, bases, every_kind, plainly):
    assert same(executor.run(bases, every_kind[::-1]))[::-1] == plainly


@pytest.mark.slow
def test_more_jobs_than_there_is_room_for_results_come_in_their_order(inputs, bases, monkeypatch):
    monkeypatch.setattr("device_runtime.simulation.executors.processes.RESULTS_BYTES", 1)
    jobs = jobs_of("class-means", 40)
    executor = Processes(inputs, 1)
    try:
        assert same(executor.run(bases, jobs)) == same(PlainExecutor(inputs).run(bases, jobs))
        assert os.fstat(executor._results.fd).st_size == 3 * mmap.PAGESIZE
    finally:
        executor.close()


def test_a_worker_takes_the_gpu_of_its_number(inputs, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(processes_worker, "in_turn", lambda engine, number: (engine.device, number))
    monkeypatch.setattr(job_module, "open_model", lambda bundle, engine: opened.append(engine))
    inputs.clients.save(tmp_path)
    engine = EngineSettings("torch", device="cuda")
    places = {"bundle": str(inputs.bundle.path), "family": {}, "clients": str(tmp_path), "temporary": False}
    SimulationWorker(WorkerInputs(3, link=-1, bases=-1, results=-1, **places, engine=engine))
    assert opened == [("cuda", 3)]


def test_a_run_of_no_jobs_gives_nothing(executor, bases):
    assert list(executor.run(bases, [])) == []


def test_a_base_model_of_the_same_number_may_be_another_in_the_next_run(executor, inputs, bases):
    jobs = [replace(job, base="1") for job in jobs_of("class-means")]
    for weights in (bases["1"], bases["4"], dict(bases["1"]), bases["4"]):
        assert same(executor.run({"1": weights}, jobs)) == same(
            PlainExecutor(inputs).run({"1": weights}, jobs)
        )


def test_a_base_model_with_a_tensor_missing_is_refused(executor, bases):
    partial = {name: value for name, value in bases["1"].items() if "head" not in name}
    with pytest.raises(TensorError, match=r"head.* missing"):
        list(executor.run({"1": partial, "4": partial}, jobs_of("class-means")))


def test_a_job_that_diverges_says_so_and_the_next_goes_on(executor, bases):
    wild = TrainingJob(2, "pi-2", FedAvg(epochs=2, lr=1e30), seed=77, base="1")
    diverged, fine = executor.run(bases, [wild, *jobs_of("class-means", 1)])
    assert isinstance(diverged, FailedJob)
    assert "non-finite" in diverged.why
    assert fine.kind == "class-means"


def test_what_a_bundle_cannot_do_is_said_as_plainly_and_others_go_on(executor, inputs, bases):
    jobs = [*jobs_of("class-means", 2), TrainingJob(0, "pi-0", ZerothOrder(tunable="lora"), 77, "1")]
    with pytest.raises(ModelError) as plainly:
        list(PlainExecutor(inputs).run(bases, jobs))
    with pytest.raises(type(plainly.value)) as raised:
        list(executor.run(bases, jobs))
    assert str(raised.value) == str(plainly.value)
    assert same(executor.run(bases, jobs[:2])) == same(PlainExecutor(inputs).run(bases, jobs[:2]))


def test_a_strategy_that_is_not_in_the_registry_is_refused_before_it_is_sent(executor, bases):
    class Own(FedAvg):
        """Of the registry's name, and not the registry's."""

    with pytest.raises(ExecutorError, match="only executor plain"):
        list(executor.run(bases, [TrainingJob(0, "pi-0", Own(), 77, "1")]))


def test_a_run_that_is_left_early_does_not_disturb_the_next(executor, bases, every_kind, plainly):
    results = executor.run(bases, every_kind)
    next(results)
    with pytest.raises(ExecutorError, match="a run is going on"):
        next(executor.run(bases, every_kind))
    results.close()
    assert same(executor.run(bases, every_kind)) == plainly


@pytest.mark.slow
def test_workers_killed_in_the_middle_change_no_bit(executor, bases, every_kind, plainly):
    results = executor.run(bases, every_kind)
    first = same([next(results)])
    for pid in executor.pids:
        os.kill(pid, signal.SIGKILL)
    assert first + same(results) == plainly
    assert len(executor.pids) == 2


@pytest.mark.slow
def test_workers_killed_between_runs_change_no_bit(executor, bases, every_kind, plainly):
    for pid in executor.pids:
        os.kill(pid, signal.SIGKILL)
    assert same(executor.run(bases, every_kind)) == plainly


@pytest.mark.slow
def test_a_job_that_ends_every_worker_is_named(inputs, bases):
    executor = Processes(inputs, 1)

    killed: list[int] = []

    def kill_three_times() -> None:
        while len(killed) < 3:
            for pid in executor.pids:
                if pid not in killed and executor._workers[0].parts == [1]:
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    killer = threading.Thread(target=kill_three_times)
    killer.start()
    jobs = [*jobs_of("class-means", 1), TrainingJob(3, "pi-3", ENDLESS, 77, "1")]
    with pytest.raises(ExecutorError, match=r"full for pi-3 \(seed 77\) ended 3 workers; .*SIGKILL.* memory"):
        list(executor.run(bases, jobs))
    killer.join()
    assert len(same(executor.run(bases, jobs[:1]))) == 1  # a worker is there again
    executor.close()


def test_nothing_is_left_behind_when_it_is_closed(inputs, bases, scratch):
    executor = Processes(inputs, 2)
    pids = executor.pids
    results = executor.run(bases, [*jobs_of("class-means", 1), TrainingJob(3, "pi-3", ENDLESS, 77, "1")])
    next(results)
    assert folders(scratch)
    executor.close()
    executor.close()
    assert all(gone(pid) for pid in pids)
    assert folders(scratch) == []
    ours = {str(pid) for pid in (os.getpid(), *pids)}  # other processes have shared memory of their own
    assert not [path for path in Path("/dev/shm").glob("*") if ours & set(path.name.split("_"))]
    with pytest.raises(ExecutorError, match="closed"):
        next(results)


def test_parts_are_of_one_base_and_no_larger_than_all_workers_need():
    jobs = [TrainingJob(i, f"pi-{i}", FedAvg(), 77, base) for i, base in enumerate("1111111444")]
    assert packing.parts_of(jobs, 4, 2) == [range(4), range(4, 7), range(7, 10)]
    assert packing.parts_of(jobs, 32, 4) == [range(3), range(3, 6), range(6, 7), range(7, 10)]
    assert packing.parts_of(jobs[:2], 1, 2) == [range(1), range(1, 2)]
    assert packing.parts_of([], 4, 2) == []


def test_workers_train_many_networks_at_once_round_after_round(inputs, bases):
    """The base of each round is written where the last one was."""
    pytest.importorskip("torch")
    on_torch = replace(inputs, engine=EngineSettings(engine="torch"))
    jobs = [replace(job, base="1") for kind in ("full", "class-means") for job in jobs_of(kind)]
    executor = Processes(on_torch, 2, together=3)
    for base in ("4", "1"):
        list(executor.run({"1": bases[base]}, jobs))
    assert_trained_together(executor, on_torch, {"1": bases["4"]}, jobs)


@pytest.mark.slow
def test_workers_train_with_torch(inputs, bases, every_kind):
    pytest.importorskip("torch")
    jobs, on_torch = every_kind[::2], replace(inputs, engine=EngineSettings(engine="torch"))
    executor = Processes(on_torch, 2)
    try:
        assert same(executor.run(bases, jobs)) == same(PlainExecutor(on_torch).run(bases, jobs))
    finally:
        executor.close()


def test_clients_that_were_opened_from_files_are_used_where_they_are(inputs, bases, tmp_path, scratch):
    inputs.clients.save(tmp_path / "clients")
    executor = Processes(replace(inputs, clients=Clients.open(tmp_path / "clients")), 1)
    jobs = jobs_of("class-means")
    assert same(executor.run(bases, jobs)) == same(PlainExecutor(inputs).run(bases, jobs))
    assert folders(scratch) == []
    executor.close()
    assert len(Clients.open(tmp_path / "clients")) == len(inputs.clients)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        (EngineSettings(engine="abacus"), EngineError, "no engine 'abacus'"),
        (EngineSettings(precision="int8"), BundleError, "int8"),
    ],
)
def test_what_a_worker_finds_wrong_at_its_start_is_said_here(inputs, settings, error, says, scratch):
    with pytest.raises(error, match=says):
        Processes(replace(inputs, engine=settings), 2)
    assert folders(scratch) == []


@pytest.mark.parametrize("workers", [0, 5000])
def test_a_senseless_number_of_workers_is_refused(inputs, workers):
    with pytest.raises(ExecutorError, match=f"workers is {workers}, expected 1 to 1024"):
        Processes(inputs, workers)


class Started:
    """The script above, in a session of its own: a signal reaches it and its workers alike."""

    def __init__(self, inputs, tmp_path, scratch, epochs: int) -> None:
        inputs.clients.save(tmp_path / "clients")
        code = [sys.executable, "-c", SCRIPT, str(inputs.bundle.path), str(tmp_path / "clients"), str(epochs)]
        self.process = subprocess.Popen(
            code,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(scratch)},
            start_new_session=True,
        )
        self.workers = [int(pid) for pid in self.process.stdout.readline().split()]


def at_work(pids) -> bool:
    """Whether each of these processes computes, which one that waits for a job does not."""

    def seconds(pid):
        return sum(psutil.Process(pid).cpu_times()[:2])

    before, end = [seconds(pid) for pid in pids], time.monotonic() + 120
    while time.monotonic() < end:
        if all(seconds(pid) > then + 0.5 for pid, then in zip(pids, before, strict=True)):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def started(inputs, tmp_path, scratch):
    return lambda epochs: Started(inputs, tmp_path, scratch, epochs)


def test_a_program_that_forgets_to_close_it_leaves_nothing_behind(started, scratch):
    script = started(epochs=1)
    _, error = script.process.communicate(timeout=300)
    assert (script.process.returncode, error) == (0, "")
    assert len(script.workers) == 2
    assert all(gone(pid) for pid in script.workers)
    assert folders(scratch) == []


def test_an_interrupt_is_not_told_by_each_worker(started, scratch):
    script = started(epochs=1_000_000)
    os.killpg(script.process.pid, signal.SIGINT)
    _, error = script.process.communicate(timeout=300)
    assert error.count("\nKeyboardInterrupt") == 1
    assert all(gone(pid) for pid in script.workers)
    assert folders(scratch) == []


def test_workers_of_a_killed_program_end_in_the_middle_of_a_job_and_take_its_folder(started, scratch):
    script = started(epochs=1_000_000)
    assert at_work(script.workers)
    script.process.kill()
    script.process.communicate(timeout=300)
    assert all(gone(pid) for pid in script.workers)
    assert folders(scratch) == []
