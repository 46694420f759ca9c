"""What is the torch engine's own; that it computes what the others do is in test_engines."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import BundleError, EngineError, TensorError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.torch_engine.engine import TorchModel

SETTINGS = {"depth": 10, "width": 1, "in_channels": 1, "classes": 10}


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((21, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 21)


def made_from(bundle: Bundle, source: Source | None) -> Bundle:
    return Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, source=source))


def test_a_bundle_that_names_no_network_runs_with_the_module_it_was_made_from(digits, data):
    nameless = made_from(digits, None)
    with pytest.raises(EngineError, match="does not say which network it was made from"):
        TorchModel(nameless)
    module = build("wrn", SETTINGS).train()
    before = module.conv1.weight.clone()
    model = TorchModel(nameless, module=module)
    np.testing.assert_array_equal(model.logits(data[0]), TorchModel(digits).logits(data[0]))
    assert module.training  # the caller's own is left alone
    assert torch.equal(module.conv1.weight, before)


def test_a_module_of_other_tensors_is_refused_with_the_first_that_differs(digits):
    with pytest.raises(EngineError, match=r"not made from this wrn: head.bias is float32 \(7,\), .* \(10,\)"):
        TorchModel(digits, module=build("wrn", {**SETTINGS, "classes": 7}))


@pytest.mark.parametrize(
    "source, message",
    [
        (Source("os:system", {}), "no network 'os:system'"),
        (Source("wrn", {"path": "/etc/passwd"}), "wrn takes no setting path"),
        (Source("wrn", {**SETTINGS, "depth": 11}), "depth is 11"),
    ],
)
def test_only_networks_of_the_registry_with_their_own_settings_are_built(digits, source, message):
    with pytest.raises(EngineError, match=f"bundle digits-wrn-10-1: .*{message}"):
        TorchModel(made_from(digits, source))


def test_a_bundle_names_no_files_here(digits, monkeypatch):
    arguments = {}
    monkeypatch.setattr(
        "device_runtime.models.networks.build",
        lambda name, settings: arguments.update(settings) or build("wrn", SETTINGS),
    )
    TorchModel(made_from(digits, Source("gru", {"vectors": "/etc/hostname", "hidden": 8})))
    assert arguments == {"hidden": 8}


def test_a_network_of_other_sizes_takes_no_memory(digits, monkeypatch):
    """WRN-10-2000 would be 1.2 TB; it is refused as a sketch on torch's meta device."""
    devices = []

    def watched(name, settings):
        devices.append(torch.get_default_device().type)
        return build(name, settings)

    monkeypatch.setattr("device_runtime.models.networks.build", watched)
    message = (
        r"not made from this wrn: group1\.0\.conv1\.weight is float32 \(32000, 16, 3, 3\), the bundle has"
    )
    with pytest.raises(EngineError, match=message):
        TorchModel(made_from(digits, Source("wrn", {**SETTINGS, "width": 2000})))
    assert devices == ["meta"]
    TorchModel(digits)
    assert devices == ["meta", "meta", "cpu"]


def test_building_the_network_leaves_torch_s_random_numbers_alone(digits):
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    TorchModel(digits)
    assert torch.equal(torch.rand(3), expected)


def test_a_device_that_is_not_here_is_refused(digits):
    with pytest.raises(EngineError, match="device is 'abacus'"):
        TorchModel(digits, device="abacus")
    with pytest.raises(EngineError, match="device cuda:99 is not available"):
        TorchModel(digits, device="cuda:99")
    with pytest.raises(EngineError, match="threads is 0"):
        TorchModel(digits, threads=0)


def test_parameters_and_gradients_share_their_memory_with_torch(digits, data):
    trainer = TorchModel(digits).trainer("all")
    vector = trainer.params.vector
    for name, tensor in trainer._free.tensors.items():
        assert tensor.data_ptr() == trainer.params.views[name].ctypes.data
    before = trainer.loss_and_grads(*data)
    vector -= np.float32(1e-3) * trainer.grads.vector
    assert trainer.loss_and_grads(*data) < before


def test_memory_of_another_device_is_copied_there_and_back_at_each_call(digits, data, monkeypatch):
    """torch copies to `cpu:0`, as it does to a GPU, though it is the same processor."""
    here = TorchModel(digits, batch=8)
    monkeypatch.setattr(
        "device_runtime.models.torch_engine.engine.find_device", lambda name: torch.device("cpu", 0)
    )
    model = TorchModel(digits, batch=8)
    np.testing.assert_array_equal(model.logits(data[0]), here.logits(data[0]))
    ours, theirs = model.trainer("all"), here.trainer("all")
    assert ours._free.tensors["head.bias"].data_ptr() != ours.params.views["head.bias"].ctypes.data
    for _ in range(3):
        assert ours.loss_and_grads(*data) == theirs.loss_and_grads(*data)
        np.testing.assert_array_equal(ours.grads.vector, theirs.grads.vector)
        for trainer in (ours, theirs):
            trainer.params.vector -= np.float32(0.01) * trainer.grads.vector
    model.load({name: value / 2 for name, value in model.weights.items()})
    here.load({name: value / 2 for name, value in here.weights.items()})
    assert model.probe("mid").loss(*data) == here.probe("mid").loss(*data)


def test_loaded_weights_are_seen_by_the_model_and_not_by_what_was_handed_out(digits, data):
    model: DeviceModel = TorchModel(digits, batch=8)
    x, y = data
    probe = model.probe("head")
    before, logits = probe.loss(x, y), model.logits(x)
    model.load({name: np.zeros_like(value) for name, value in model.weights.items()})
    assert np.abs(model.logits(x)).max() == 0
    assert model.probe("head").loss(x, y) == pytest.approx(np.log(10), abs=1e-6)
    assert probe.loss(x, y) == before
    model.load(digits.weights())
    model.unload()
    np.testing.assert_array_equal(model.logits(x), logits)
    with pytest.raises(ValueError, match="read-only"):
        model.weights["head.bias"][0] = 1
    with pytest.raises(TensorError, match=r"head.bias is \(3,\)"):
        model.load({"head.bias": np.zeros(3, np.float32)})


def test_equal_inputs_give_equal_bits(digits, data):
    runs = []
    for _ in range(2):
        trainer = TorchModel(digits, batch=8).trainer("all")
        runs.append((trainer.loss_and_grads(*data), trainer.grads.vector.tobytes()))
    assert runs[0] == runs[1]


def test_the_watch_is_told_of_loads_and_runs_and_may_refuse(digits, data):
    class Watch:
        def __init__(self) -> None:
            self.loads, self.runs = [], []

        def will_load(self, name, graph):
            if name == "train.all":
                raise MemoryError(name)
            self.loads.append(name)

        def ran(self, name, graph, samples, seconds):
            self.runs.append((name, samples, seconds > 0))

    watch = Watch()
    model = TorchModel(digits, batch=8, watch=watch)
    model.logits(data[0])
    model.trainer("head").loss_and_grads(*data)
    model.trainer("head")
    assert watch.loads == ["forward", "train.head"]
    assert watch.runs == [(name, n, True) for name in ("forward", "train.head") for n in (8, 8, 5)]
    with pytest.raises(MemoryError, match=r"train\.all"):
        model.trainer("all")
    model.unload()
    model.logits(data[0])
    assert watch.loads == ["forward", "train.head", "forward"]


def test_wrong_arrays_sets_and_graphs_are_refused_as_on_other_engines(digits, data):
    model, (x, y) = TorchModel(digits), data
    assert model.logits(x[:0]).shape == (0, 10)
    with pytest.raises(EngineError, match="x is float64"):
        model.logits(x.astype(np.float64))
    with pytest.raises(EngineError, match="at least one"):
        model.trainer("head").loss_and_grads(x[:0], y[:0])
    with pytest.raises(EngineError, match="extra inputs are target, expected none"):
        model.trainer("head").loss_and_grads(x, y, {"target": np.zeros((21, 10), np.float32)})
    with pytest.raises(BundleError, match="no tunable set 'some'"):
        model.probe("some")
    with pytest.raises(BundleError, match=r"no graph 'moon\.all'"):
        model.trainer("all", "moon")
    with pytest.raises(BundleError, match=r"no graph 'features\.low'"):
        model.level_features(x, "low")


def test_what_torch_raises_is_an_engine_error_of_one_line(digits, data, monkeypatch):
    model = TorchModel(digits)

    def broken(self, x):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(type(model._subject.module), "forward", broken)
    with pytest.raises(EngineError, match="torch, graph forward on 21 samples: two lines"):
        model.logits(data[0])


@pytest.mark.slow
def test_the_engine_needs_neither_onnxruntime_nor_torch_s_tracer():
    code = (
        "import sys, numpy as np\nfrom device_runtime.models.bundles.bundle import Bundle, find_bundle\n"
        "from device_runtime.models.torch_engine.engine import TorchModel\n"
        "m = TorchModel(Bundle.open(find_bundle('digits-wrn-10-1')))\n"
        "m.trainer('head').loss_and_grads(np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))\n"
        "names = ('onnxruntime', 'onnx', 'device_runtime.models.export.trace')\n"
        "print([n for n in names if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_gradients_of_large_layers_and_pooled_maps_are_those_of_the_plain_module(tmp_path):
    """`cnn` of 12x12 images has a linear layer of 131,072 values, whose gradient is written in place."""
    torch.manual_seed(0)
    module = build("cnn", {"in_channels": 1, "size": 12})
    labels = tuple("0123456789")
    spec = ExportSpec(
        "cnn", InputSpec((1, 12, 12)), labels, source=Source("cnn", {"in_channels": 1, "size": 12})
    )
    model = TorchModel(export(module, spec, tmp_path / "cnn"), batch=8)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((11, 1, 12, 12), np.float32), rng.integers(0, 10, 11)
    for rows in (slice(0, 6), slice(None), slice(3, 4)):  # one batch, two micro-batches, one sample
        trainer = model.trainer()
        for _ in range(2):  # the second overwrites the first
            trainer.loss_and_grads(x[rows], y[rows])
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        expected = torch.autograd.grad(loss, list(module.parameters()))
        for (name, _), grad in zip(module.named_parameters(), expected, strict=True):
            np.testing.assert_allclose(trainer.grads.views[name], grad.numpy(), atol=2e-6, err_msg=name)
