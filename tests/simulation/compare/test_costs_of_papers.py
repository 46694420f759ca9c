"""Thesis 000, appendix A.1 and table 3.2: what a run costs, as the papers count it, from a simulated run."""

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.compare.completing import RunOptions, perform
from device_runtime.simulation.compare.figures import ComparisonTerms, figures, read_run
from device_runtime.simulation.compare.run_folder import RunName
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.history.records import NullObserver
from device_runtime.simulation.scenarios import scenario

LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PLAIN = RunOptions(ExecutorRequest("plain"))


def ran(setting, policy, folder):
    """The figures of one run of a system, at its own end."""
    name = RunName(policy, 0)
    perform(setting, name, folder, PLAIN, NullObserver())
    run = read_run(folder, name, number=1)
    return figures(run, ComparisonTerms(at_s=run.ends_s, target=0.0, devices=setting.devices)), run


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Random images of 32x32, three for each of 100 devices."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(2)
    for part, count in (("train", 300), ("test", 20)):
        np.save(folder / f"x_{part}.npy", rng.integers(0, 256, (count, 3, 32, 32), np.uint8))
        np.save(folder / f"y_{part}.npy", np.arange(count) % 10)
    return folder


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory) -> Bundle:
    """With random weights: costs follow from the manifest alone."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.bundles.inputs import InputSpec
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(0)
    spec = ExportSpec("squeezenet", InputSpec((3, 32, 32), 1 / 255), LABELS, sets={"head": {}}, objectives=())
    return export(
        build("squeezenet", {"classes": 10}), spec, tmp_path_factory.mktemp("squeezenet") / "bundle"
    )


@pytest.mark.slow
def test_fedncm_of_squeezenet_and_100_clients_costs_what_table_3_2_says(squeezenet, photos, tmp_path):
    """1 F for each sample; 2 * 512 * 10 values * 4 bytes * 100 clients = 4.1e-3 GB, in one round."""
    task = {"bundle": str(squeezenet.path), "rounds": 20, "round_deadline_s": 1e6}
    data = {"source": "npz", "path": str(photos), "partition": "dirichlet", "alpha": 0.1}
    setting = scenario.load("uniform", {"devices": 100, "data": data, "task": task})
    got, run = ran(setting, "fedncm", tmp_path)
    assert [line.participants for line in run.rounds] == [100]
    assert got.bytes_analytic / 1e9 == pytest.approx(4.1e-3, rel=0.005)
    assert got.bytes_up == pytest.approx(100 * 4 * (512 * 10 + 10), rel=0.02)
    assert got.forward_passes == 300

    served = tensors.decode((tmp_path / "served.safetensors").read_bytes())
    x = squeezenet.manifest.input.prepare(np.load(photos / "x_train.npy"))
    features, y = OnnxModel(squeezenet).features(x), np.load(photos / "y_train.npy")
    means = np.stack([features[y == label].mean(0, dtype=np.float64) for label in range(10)])
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(served[squeezenet.manifest.head.weight], unit, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("policy", "rounds", "passes", "sent"),
    [("ft", 2, 2 * 3, 77_850), ("lp", 2, 1, 650), ("fedncm", 1, 1, 650)],
)
def test_a_system_s_compute_and_bytes_follow_the_formulas(policy, rounds, passes, sent, tmp_path):
    """Equations 8 to 11: of two epochs 3 F for each sample and epoch; of the head alone 1 F.

    What is counted of the head is 1 F for each sample and round, as features of a round are computed once.
    Bytes: 2 * values * 4 for each of six devices and round.
    """
    kinds = [{"name": name, "settings": {"epochs": 2}} for name in ("full", "peft")]
    task = {"rounds": 2, "round_deadline_s": 1e6, "kinds": kinds}
    data = {"samples_per_client": 10, "partition": "iid", "max_test": 40}
    got, run = ran(scenario.load("uniform", {"devices": 6, "data": data, "task": task}), policy, tmp_path)
    assert len(run.rounds) == rounds
    assert got.forward_passes == pytest.approx(passes * rounds * 60, rel=0.02)
    epochs = {"ft": 1, "lp": 2, "fedncm": 1}[policy]
    assert got.passes_analytic == epochs * passes * rounds * 60
    assert got.bytes_analytic == pytest.approx(2 * sent * 4 * 6 * rounds, rel=0.02)
    first = sum(line.bytes_down for line in run.rounds[:1])
    assert got.bytes_after_first == got.bytes_up + got.bytes_down - first
