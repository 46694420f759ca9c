"""Systems of the papers as real processes over a real broker, and what of them survives kill -9."""

import numpy as np
import pytest

from device_runtime.models.bundles import tensors

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


@pytest.fixture
def join(broker, launched, digits_in, tmp_path):
    """A device with forty digits of its own."""

    def start(name, run):
        first = 40 * "ab".index(name)
        data = digits_in(tmp_path / f"{name}.npz", slice(first, first + 40))
        settings = ("--data", data, "--name", name, "--state", tmp_path / run / name)
        return launched(tmp_path / run / f"{name}.log", "join", broker.url, *settings)

    return start


@pytest.fixture
def serve(broker, launched, tmp_path):
    def start(run, system):
        where = ("--broker", broker.url, "--run-dir", tmp_path / run / "served", "--quiet")
        words = ("serve", tmp_path / run / "task.toml", "--system", system)
        return launched(tmp_path / run / "serve.log", *words, *where)

    return start


def prepared(folder, run, bundle, exported, family=()):
    (folder / run).mkdir()
    named = ", ".join(f'"{getattr(exported, member)}"' for member in family)
    text = TASK.format(
        rounds=ROUNDS, bundle=getattr(exported, bundle), family=named, generic=exported.generic
    )
    (folder / run / "task.toml").write_text(text)


def finished(service, folder, run):
    assert service.wait(600) == 0, (folder / run / "serve.log").read_text()
    return tensors.decode((folder / run / "served" / "served.safetensors").read_bytes())


def closed(folder, run):
    path = folder / run / "served" / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def undisturbed(join, serve, exported, tmp_path):
    """The weights that a system's run makes when nothing is killed."""

    def run(system, *, bundle="tuned", family=()):
        prepared(tmp_path, "whole", bundle, exported, family)
        with join("a", "whole"), join("b", "whole"), serve("whole", system) as service:
            return finished(service, tmp_path, "whole")

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "bundle", "family"), [("fedkad", "taught", ("small",)), ("heterofl", "taught", ("half",))]
)
def test_a_family_of_models_is_learnt_by_processes(undisturbed, tmp_path, system, bundle, family):
    weights = undisturbed(system, bundle=bundle, family=family)
    assert closed(tmp_path, "whole") == ROUNDS
    assert all(np.isfinite(value).all() for value in weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("system", ["fedncm+ft+fedadam", "moon"])
def test_what_kinds_and_optimisers_keep_survives_kill_9_on_both_sides(
    undisturbed, join, serve, exported, eventually, tmp_path, system
):
    """The moments of the optimiser and a device's last model: with them gone, other weights would come."""
    expected = undisturbed(system)
    prepared(tmp_path, "killed", "tuned", exported)
    with join("b", "killed"):
        device, service = join("a", "killed"), serve("killed", system)
        with device as first, service as life:
            eventually(lambda: closed(tmp_path, "killed") >= 2)
            life.kill()
            first.kill()
        with join("a", "killed"), serve("killed", system) as service:
            weights = finished(service, tmp_path, "killed")
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
