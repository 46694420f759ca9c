"""Systems of the papers as real processes over a real broker, and what of them survives kill -9."""

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from broker import brokers
from models import tensors

COMMAND = str(Path(sys.executable).with_name("device-runtime"))
ROUNDS = 4
TASK = """
rounds = {rounds}
round_deadline_s = 60.0
min_devices = 2
min_contributions = 2
bundle = "{bundle}"
family = [{family}]
generic = "{generic}"

[[kinds]]
name = "full"
settings = {{ epochs = 1, lr = 0.05, batch = 16 }}
"""


@pytest.fixture(scope="module")
def broker():
    running = brokers.start("auto")
    yield running
    running.stop()


@pytest.fixture
def data(tmp_path):
    """Forty digits for each of two devices."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    for place, name in enumerate(("a", "b")):
        mine = slice(40 * place, 40 * place + 40)
        np.savez(tmp_path / f"{name}.npz", x=raw.images[mine].astype(np.uint8), y=raw.target[mine])
    return tmp_path


@contextmanager
def started(log, *arguments):
    with log.open("ab") as out:
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def join(broker, data, name, run):
    state = data / run / name
    return started(
        data / run / f"{name}.log",
        *("join", broker.url, "--data", data / f"{name}.npz", "--name", name, "--state", state),
    )


def serve(broker, data, run, system):
    task, folder = data / run / "task.toml", data / run / "served"
    return started(
        data / run / "serve.log",
        *("serve", task, "--system", system, "--broker", broker.url, "--run-dir", folder, "--quiet"),
    )


def prepared(data, run, bundle, exported, family=()):
    (data / run).mkdir()
    named = ", ".join(f'"{getattr(exported, member)}"' for member in family)
    text = TASK.format(
        rounds=ROUNDS, bundle=getattr(exported, bundle), family=named, generic=exported.generic
    )
    (data / run / "task.toml").write_text(text)


def finished(service, data, run):
    assert service.wait(120) == 0, (data / run / "serve.log").read_text()
    return tensors.decode((data / run / "served" / "served.safetensors").read_bytes())


def closed(data, run):
    path = data / run / "served" / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def eventually(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def undisturbed(broker, data, system, exported, *, bundle="tuned", family=()):
    prepared(data, "whole", bundle, exported, family)
    devices = join(broker, data, "a", "whole"), join(broker, data, "b", "whole")
    with devices[0], devices[1], serve(broker, data, "whole", system) as service:
        return finished(service, data, "whole")


@pytest.mark.parametrize(
    ("system", "bundle", "family"), [("fedkad", "taught", ("small",)), ("heterofl", "taught", ("half",))]
)
def test_a_family_of_models_is_learnt_by_processes(broker, data, exported, system, bundle, family):
    weights = undisturbed(broker, data, system, exported, bundle=bundle, family=family)
    assert closed(data, "whole") == ROUNDS
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.parametrize("system", ["fedncm+ft+fedadam", "moon"])
def test_what_kinds_and_optimisers_keep_survives_kill_9_on_both_sides(broker, data, exported, system):
    """The moments of the optimiser and a device's last model: with them gone, other weights would come."""
    expected = undisturbed(broker, data, system, exported)
    prepared(data, "killed", "tuned", exported)
    with join(broker, data, "b", "killed"):
        device, service = join(broker, data, "a", "killed"), serve(broker, data, "killed", system)
        with device as first, service as life:
            eventually(lambda: closed(data, "killed") >= 2)
            life.kill()
            first.kill()
        with join(broker, data, "a", "killed"), serve(broker, data, "killed", system) as service:
            weights = finished(service, data, "killed")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
