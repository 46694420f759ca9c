"""Bundles of own code that torch trains in simulations: `module` of `dr.simulate`, `simulate --module`."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import device_runtime as dr
from device_runtime.cli import main
from device_runtime.models.errors import EngineError, ExportError
from device_runtime.models.networks.own import own_function, own_network
from device_runtime.simulation.errors import ExecutorError, ScenarioError
from device_runtime.simulation.executors.batched_many import BatchedNetworks
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.rounds.run import prepare
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.strategies.kinds import registry

torch = pytest.importorskip("torch")

TRAINED = 3e-5
"""How far apart two engines train, as a share of the largest weight; test_available.py has 3e-6 to 5e-4."""
SMALL = {"fleet": "phones", "devices": 6, "rounds": 2, "policies": ["fedavg"], "progress": False}
SMALL |= {"data": dr.data.digits(max_train=60, max_test=20)}
NETWORK = """
from torch import nn
from layers import WIDTH

class Net(nn.Module):
    def __init__(self, width=WIDTH, activation=nn.ReLU):
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(1, width, 3), activation(), nn.Linear(36 * width, 10)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).flatten(1))

def build(): return Net()
def wide(): return Net(5)
def changed(): return Net(activation=nn.Tanh)
def sized(width): return Net(width)
def fails(): raise OSError("no such weights")
ready, number = Net(), 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """net.py, a file that it imports, and the bundle of its network."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "layers.py").write_text("WIDTH = 4\n")
    (folder / "net.py").write_text(NETWORK)
    labels = list("0123456789")
    network = own_network(f"{folder}/net.py:ready", {})
    dr.export(network, folder / "bundle", input=(1, 8, 8), labels=labels, scale=1 / 16, tunable="all")
    return folder


def served(folder: Path, **arguments) -> dict[str, np.ndarray]:
    """The model that the last round serves, and the name of the executor."""
    run = dr.simulate(folder / "bundle", **SMALL, **arguments).runs[0]
    assert len(run.accuracy) == 2
    return load_file(run.folder / "served.safetensors")


@pytest.fixture(scope="module")
def by_onnx(folder):
    return served(folder)


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=TRAINED * np.abs(value).max())


EXECUTORS = (
    "plain",
    "batched",
    ExecutorRequest("processes", 2),
    pytest.param(ExecutorRequest("ray", 1), marks=pytest.mark.slow),
)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_named_network_is_trained_by_torch_as_by_its_graphs(folder, by_onnx, executor):
    if getattr(executor, "name", "") == "ray":
        pytest.importorskip("ray")
    by_torch = served(folder, module=f"{folder}/net.py:build", executor=executor)
    assert_close(by_torch, by_onnx)
    assert any(not np.array_equal(by_torch[name], by_onnx[name]) for name in by_onnx)


def test_a_network_of_this_process_is_trained_here(folder, by_onnx, caplog):
    network = own_network(f"{folder}/net.py:ready", {}).train()
    before = network.conv.weight.clone()
    assert_close(served(folder, module=network), by_onnx)
    assert network.training
    assert torch.equal(network.conv.weight, before)
    with pytest.raises(ExecutorError, match="no module Net: name it by FILE.py:NAME, or take executor auto"):
        served(folder, module=network, executor="processes")
    runs = dr.simulate(folder / "bundle", module=lambda: network, seeds=2, **{**SMALL, "rounds": 1}).runs
    assert not any((run.folder / "log.txt").exists() for run in runs)
    assert "it does all runs, one after another" in caplog.text


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nowhere.py:build", EngineError, "module .*nowhere.py:build: there is no file .*nowhere.py"),
        ("nowhere:build", EngineError, "nowhere:build cannot be imported from here"),
        ("net.py", EngineError, "'net.py' is not FILE.py:NAME or MODULE:NAME"),
        (":Net", EngineError, "module Net is one of another process: name it by FILE.py:NAME"),
        ("net.py:absent", EngineError, "net.py:absent cannot be imported .*has no attribute 'absent'"),
        ("net.py:number", EngineError, "net.py:number is a int, expected a function or class"),
        ("net.py:WIDTH", EngineError, "net.py:WIDTH is a int, expected a function or class"),
        ("net.py:sized", EngineError, "missing 1 required positional .*: 'width'.*function that needs none"),
        ("net.py:fails", EngineError, r"net.py:fails fails: OSError: no such weights \(net.py, line \d+\)"),
        ("net.py:wide", EngineError, r"not made from this Net: conv.bias is float32 \(5,\), .*\(4,\)"),
        ("net.py:changed", EngineError, "net.py:changed computes other logits than bundle bundle, off by"),
        (3, ExportError, "module is 3, expected a torch.nn.Module, a function"),
    ],
)
def test_a_module_that_is_not_the_bundle_s_is_refused_before_anything_is_run(
    folder, name, error, message, monkeypatch
):
    monkeypatch.chdir(folder)
    with pytest.raises(error, match=message):
        dr.simulate("bundle", module=name, **SMALL)


def test_an_engine_that_runs_graphs_takes_no_module(folder):
    task = dr.Task(bundle=str(folder / "bundle"), rounds=1)
    scenario = scenarios.Scenario(fleet=dr.Fleet.load("phones"), task=task, engine="onnxruntime")
    with pytest.raises(EngineError, match="engine onnxruntime runs a bundle's graphs, and no module"):
        dr.simulate(scenario, module=f"{folder}/net.py:build", progress=False)


def test_a_bundle_that_names_its_network_takes_no_module(folder):
    with pytest.raises(ScenarioError, match=r"network it was made from \(wrn\): leave the module out"):
        dr.simulate("digits-wrn-10-1", module=f"{folder}/net.py:build", progress=False)


def test_a_scenario_names_a_module_in_a_file_beside_it(folder):
    (folder / "s.toml").write_text('fleet = "phones"\nmodule = "net.py:build"\n[task]\nbundle = "bundle"\n')
    scenario = scenarios.load(folder / "s.toml")
    assert scenario.module == f"{folder}/net.py:build"
    assert scenarios.decode(scenario.json()) == scenario
    assert b'"module"' not in scenarios.load("phones").json()


def test_the_command_takes_a_module_and_a_device(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["simulate", "phones", "--devices", "6", "--rounds", "2", "--bundle", "bundle", "--compare"]
    words += ["kinds=fedavg", "--module", "net:build"]
    assert main([*words, "--device", "abacus"]) != 0
    assert "device is 'abacus', the torch engine runs on cpu, cuda" in capsys.readouterr().err
    assert main([*words, "--engine", "onnxruntime"]) != 0
    assert "engine onnxruntime runs a bundle's graphs, and no module (net:build)" in capsys.readouterr().err


def test_a_network_that_vmap_cannot_run_is_trained_one_device_after_another(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "s.toml").write_text('fleet = "phones"\nmodule = "net.py:build"\n[task]\nbundle = "bundle"\n')
    inputs = prepare(scenarios.load("s.toml", {"devices": 6}), 0).inputs
    kind = registry.make("full", {"epochs": 1})
    assert BatchedNetworks(inputs).refusal(kind) == ""
    network = own_network("net.py:ready", {})
    monkeypatch.setattr(type(network.act), "forward", lambda _, x: x * x.detach().sum().item())
    assert BatchedNetworks(inputs).refusal(kind).startswith("their copies cannot run together (torch, ")


ROWS = np.random.default_rng(1).standard_normal((120, 6))
"""Samples of three classes: the largest of the first three columns."""
ALONE = {key: value for key, value in SMALL.items() if key != "data"}


def linear(outputs: int = 3, inputs: int = 6):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(inputs, outputs))


@pytest.fixture
def classes(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return dr.data.arrays(ROWS, ROWS[:, :3].argmax(1), partition="iid")


@pytest.mark.slow
def test_a_network_in_place_of_a_task_is_exported_for_the_data_and_gives_the_same_again(classes, tmp_path):
    first = dr.simulate(linear(), data=classes, run_dir=tmp_path / "first", **ALONE).runs[0]
    again = dr.simulate(linear(), data=classes, run_dir=tmp_path / "again", **ALONE).runs[0]
    model, same_model = (load_file(run.folder / "served.safetensors") for run in (first, again))
    assert all(np.array_equal(model[name], same_model[name]) for name in model)
    longer = dr.simulate(linear(), data=classes, run_dir=tmp_path / "first", **{**ALONE, "rounds": 3}).runs[0]
    assert longer.accuracy[:2].tolist() == first.accuracy.tolist()
    other = linear()
    with torch.no_grad():
        other[0].bias += 1.0
    with pytest.raises(ScenarioError, match="holds another scenario .task.bundle is "):
        dr.simulate(other, data=classes, run_dir=tmp_path / "first", **ALONE)


def test_a_module_without_a_task_is_exported_and_trained_by_torch(classes):
    by_graphs, by_torch = (
        load_file(dr.simulate(**arguments, data=classes, **ALONE).runs[0].folder / "served.safetensors")
        for arguments in ({"task": linear()}, {"module": linear()})
    )
    assert_close(by_torch, by_graphs)


def test_numbers_as_targets_are_trained_by_squared_errors(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = dr.simulate(linear(2), data=dr.data.arrays(ROWS, ROWS[:, :2]), **ALONE)
    assert "R2" in result.table()


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (linear(2), ExportError, "Sequential has 2 outputs, and the samples have 3 classes"),
        (linear(3, inputs=5), ExportError, r"fails on \(4, 6\): mat1 and mat2 shapes"),
        (torch.nn.ReLU(), ExportError, "ReLU has no nn.Linear, which the head must be"),
        (
            torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Linear(2, 3)),
            ExportError,
            "takes token ids",
        ),
    ],
)
def test_a_network_that_does_not_fit_the_samples_is_refused(classes, network, error, message):
    with pytest.raises(error, match=message):
        dr.simulate(network, data=classes, **ALONE)


def test_a_network_alone_needs_data_and_no_module():
    with pytest.raises(ScenarioError, match=r"a network of one's own needs data: data=device_runtime.data"):
        dr.simulate(linear(), **ALONE)
    with pytest.raises(ScenarioError, match="task is a network, and module another one"):
        dr.simulate(linear(), module=linear(), data=dr.data.digits(), **ALONE)


def test_a_precision_is_for_torch_and_is_named_where_it_changes_results(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    words = ["simulate", "phones", "--devices", "6", "--rounds", "1", "--bundle", "bundle", "--compare"]
    words += ["kinds=fedavg", "--precision", "bf16", "--run-dir"]
    assert main([*words, "refused", "--engine", "onnxruntime"]) != 0
    assert "engine onnxruntime trains in float32, not in bf16: engine torch can" in capsys.readouterr().err
    assert main([*words, "lowered", "--module", "net:build"]) == 0
    assert "every device that is there asked in each; trained in bf16\n" in capsys.readouterr().out
    assert "; trained in bf16." in (folder / "lowered" / "report.html").read_text()
    scenario = scenarios.load("phones", {"precision": "bf16"})
    assert scenarios.decode(scenario.json()) == scenario
    assert b'"precision"' not in scenarios.load("phones").json()
    with pytest.raises(ScenarioError, match="precision is 'int8', expected one of float32, tf32, bf16"):
        dr.simulate("bundle", precision="int8", **SMALL)
    with pytest.raises(ScenarioError, match="precision is tf32, which only GPUs have, and place is cpu"):
        dr.simulate("bundle", precision="tf32", **SMALL)


LOSSES = """
import torch

def pinball(outputs, targets):
    off = targets - outputs
    return torch.where(off > 0, 0.9 * off, -0.1 * off).mean(1)

def squared(outputs, targets): return ((targets - outputs) ** 2).mean(1)
number = 3
"""


@pytest.fixture
def values(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"data": dr.data.arrays(ROWS, ROWS[:, :2], partition="iid"), **ALONE}


@pytest.fixture(scope="module")
def quantiles(tmp_path_factory):
    """losses.py, and a bundle of its loss."""
    folder = tmp_path_factory.mktemp("losses")
    (folder / "losses.py").write_text(LOSSES)
    pinball = own_function(f"{folder}/losses.py:pinball")
    labels = ["first", "second"]
    dr.export(linear(2), folder / "bundle", input=(6,), labels=labels, loss=pinball, tunable="all")
    return folder


@pytest.mark.parametrize("executor", ["plain", "batched"])
def test_a_loss_of_ones_own_is_trained_by_torch_as_by_the_graphs(quantiles, values, executor):
    def weights(**arguments):
        run = dr.simulate(quantiles / "bundle", **values, **arguments).runs[0]
        return load_file(run.folder / "served.safetensors")

    loss = f"{quantiles}/losses.py:pinball"
    by_torch = weights(module=linear(2), loss=loss, executor=executor)
    assert_close(by_torch, weights())
    same = weights(module=linear(2), loss=own_function(loss), executor=executor)
    assert all(np.array_equal(by_torch[name], same[name]) for name in same)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (
            "losses.py:squared",
            EngineError,
            r"loss .*losses.py:squared is .* on random samples, and .* by bundle",
        ),
        (
            "losses.py:absent",
            EngineError,
            "loss .*losses.py:absent cannot be imported .*no attribute 'absent'",
        ),
        ("losses.py:number", EngineError, "loss .*losses.py:number is a int, expected a function"),
        (None, EngineError, r"has a loss of its own: give its function \(simulate --own-loss\)"),
    ],
)
def test_a_loss_that_is_not_the_bundle_s_is_refused_before_anything_is_run(
    quantiles, values, loss, error, message, monkeypatch
):
    monkeypatch.chdir(quantiles)
    with pytest.raises(error, match=message):
        dr.simulate("bundle", module=linear(2), loss=loss, **values)


def test_a_loss_for_a_bundle_that_has_another_is_refused(quantiles, folder):
    with pytest.raises(
        ScenarioError, match="own_loss is .*pinball, but bundle bundle has loss cross-entropy"
    ):
        dr.simulate(folder / "bundle", loss=f"{quantiles}/losses.py:pinball", **SMALL)


@pytest.mark.slow
def test_a_network_in_place_of_a_task_takes_a_loss(quantiles, values):
    by_graphs, by_torch = (
        load_file(dr.simulate(**code, **values).runs[0].folder / "served.safetensors")
        for code in (
            {"task": linear(2), "loss": own_function(f"{quantiles}/losses.py:pinball")},
            {"module": linear(2), "loss": f"{quantiles}/losses.py:pinball"},
        )
    )
    assert_close(by_torch, by_graphs)
    mae = dr.simulate(linear(2), loss="mae", **values)
    assert "R2" in mae.table()
