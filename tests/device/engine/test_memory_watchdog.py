"""Memory that runs out while a device works, against its prediction."""

import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from device_runtime.device.engine.engine_guard import STALLED, EngineGuard, MemoryWatchdog, guarded
from device_runtime.device.errors import OutOfMemory
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.profiles.measure import MIB, MachineMemory

PLENTY = MachineMemory(8000 * MIB, 4000 * MIB)
ONE = np.zeros((1, 1, 8, 8), np.float32)


@pytest.fixture
def calm(tmp_path):
    path = tmp_path / "memory"
    path.write_text(
        "some avg10=90.00 avg60=0 avg300=0 total=0\nfull avg10=1.00 avg60=0.00 avg300=0 total=0\n"
    )
    return path


def dog(engine_guard, room=PLENTY, pressure=None):
    return MemoryWatchdog(engine_guard, lambda: room, pressure)


def test_with_room_enough_nothing_is_wrong(calm):
    assert dog(EngineGuard(10**12), PLENTY, calm).shortage() == ""


def test_a_process_over_its_limit_a_machine_without_room_and_one_that_stands_still_are_noticed(calm):
    assert "over its 1 MB" in dog(EngineGuard(1_000_000), PLENTY, calm).shortage()
    scarce = dog(EngineGuard(10**12), MachineMemory(8000 * MIB, 63 * MIB), calm)
    assert scarce.shortage() == "66 MB of memory are left here, of 8389"
    calm.write_text(f"full avg10={STALLED:.2f} avg60=0.00 avg300=0.00 total=0\n")
    assert "stood still for 20%" in dog(EngineGuard(10**12), PLENTY, calm).shortage()


def test_a_kernel_that_tells_no_pressure_is_none(tmp_path):
    assert dog(EngineGuard(10**12), PLENTY, tmp_path / "nothing").shortage() == ""


def test_work_ends_at_its_next_step_after_an_alarm_and_once_for_each(bundle):
    model = OnnxModel(bundle, watch=(engine_guard := EngineGuard(10**12)))
    model.forward(ONE)
    engine_guard.alarm("5 MB of memory are left here")
    with pytest.raises(OutOfMemory, match="5 MB of memory are left"):
        model.forward(ONE)
    model.forward(ONE)


def test_an_alarm_of_earlier_work_is_forgotten_when_new_work_begins(bundle):
    model = OnnxModel(bundle, watch=(engine_guard := EngineGuard(10**12)))
    engine_guard.alarm("long ago")
    engine_guard.start()
    model.forward(ONE)


def test_the_thread_looks_while_there_is_work_and_ends_with_it(bundle, monkeypatch):
    engine_guard, looked = EngineGuard(10**12), threading.Event()

    def shortage(self):
        looked.set()
        return "it is tight"

    monkeypatch.setattr(MemoryWatchdog, "shortage", shortage)
    model, steps = OnnxModel(bundle, watch=engine_guard), []
    with guarded(engine_guard, lambda: steps.append(1)):
        assert not any(thread.name == "memory watchdog" for thread in threading.enumerate())
        engine_guard.start()
        assert looked.wait(600)
        with pytest.raises(OutOfMemory, match="it is tight"):
            for _ in range(100_000):
                model.forward(ONE)
    assert not any(thread.name == "memory watchdog" for thread in threading.enumerate())
    count = len(steps)
    engine_guard.start()
    model.forward(ONE)
    assert len(steps) == count


CAPPED = """
import numpy as np
from device_runtime.device.engine.engine_guard import limit_memory
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.errors import EngineError
from device_runtime.models.available_engines.onnx_engine import OnnxModel
trainer = OnnxModel(Bundle.open(shipped_folder("digits-wrn-10-1"))).trainer("all")
x, y = np.zeros((32, 1, 8, 8), np.float32), np.zeros(32, np.int64)
limit_memory(500_000)
for act in (lambda: trainer.loss_and_grads(x, y), lambda: np.ones(10**7)):
    try:
        act()
    except (EngineError, MemoryError) as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process has")
def test_memory_beyond_a_cap_is_refused_and_the_process_lives():
    done = subprocess.run([sys.executable, "-c", CAPPED], capture_output=True, text=True, check=True)
    engine, array = done.stdout.splitlines()
    assert "ONNX Runtime, graph train.all" in engine
    assert "Unable to allocate" in array


TIGHT = """
from device_runtime.device.engine import engine_guard as watchdog
from device_runtime.device.engine.engine_guard import EngineGuard
from device_runtime.profiles.measure import MachineMemory
watchdog.available_memory = lambda: MachineMemory(10**9, 0)
guard = EngineGuard(10**12)
with watchdog.guarded(guard, lambda: None):
    guard.start()
    print("watched")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell what a process has")
def test_work_that_begins_where_nothing_is_left_is_watched_and_ends_no_device():
    done = subprocess.run([sys.executable, "-c", TIGHT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("watched\n", "")


def test_a_cap_ends_with_the_work(bundle):
    before, engine_guard = resource.getrlimit(resource.RLIMIT_DATA), EngineGuard(10**12)
    with guarded(engine_guard, lambda: None):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
        engine_guard.start()
        assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[0] < 10**12
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_session_is_refused_that_does_not_fit_into_what_is_free_by_now(bundle, monkeypatch):
    """The limit was set when the round began; others have taken memory since."""
    monkeypatch.setattr(
        "device_runtime.device.engine.engine_guard.available_memory",
        lambda: MachineMemory(1000 * MIB, 21 * MIB),
    )
    model = OnnxModel(bundle, watch=EngineGuard(10**12))
    with pytest.raises(OutOfMemory, match=r"train\.all needs \d+ MB in all, this device may use \d+ MB"):
        model.trainer("all")
