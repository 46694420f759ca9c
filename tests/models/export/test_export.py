"""One small network with what the shipped one lacks: BatchNorm, pooling, depthwise, dropout, frozen parts."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.errors import BundleError, EngineError, ExportError, ParityError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import build
from device_runtime.models.training.optimizer import Sgd

nn = torch.nn
LABELS = ("a", "b", "c")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.pool = nn.MaxPool2d(2)
        self.drop = nn.Dropout(0.5)
        self.fixed = nn.Linear(16, 5)
        self.fixed.requires_grad_(False)
        self.head = nn.Linear(5, 3, bias=False)
        self.register_buffer("unused", torch.zeros(2))

    def forward(self, x):
        x = self.pool(torch.relu(self.depthwise(self.norm(self.stem(x)))))
        return self.head(self.drop(self.fixed(x.flatten(1))))


SPEC = ExportSpec("small", InputSpec((2, 4, 4)), LABELS)


@pytest.fixture(scope="module")
def module() -> Small:
    torch.manual_seed(5)
    network = Small()
    for _ in range(3):  # running statistics of its own
        network(torch.randn(16, 2, 4, 4) * 2 + 1)
    return network


@pytest.fixture(scope="module")
def bundle(module, tmp_path_factory):
    return export(module, SPEC, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((7, 2, 4, 4), dtype=np.float32), rng.integers(0, 3, 7)


@pytest.mark.slow
def test_module_is_left_in_training_mode(module, bundle):
    assert module.training
    assert module.head.weight.requires_grad


def test_bundle_computes_what_the_module_computes_in_eval_mode(module, bundle, data):
    x, _ = data
    module.eval()
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    module.train()
    np.testing.assert_allclose(OnnxModel(bundle).logits(x), expected, atol=1e-5)


def test_gradients_of_the_bundle_are_those_of_the_module(module, bundle, data):
    x, y = data
    module.eval()
    module.zero_grad()
    nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    module.train()
    trainer = OnnxModel(bundle).trainer("all")
    trainer.loss_and_grads(x, y)
    expected = {n: p.grad.numpy() for n, p in module.named_parameters() if p.requires_grad}
    assert trainer.grads.views.keys() == expected.keys()
    for name, grad in trainer.grads.views.items():
        np.testing.assert_allclose(grad, expected[name], atol=1e-5, err_msg=name)


def test_running_statistics_and_frozen_layers_are_stored_but_never_trained(bundle):
    sets = {p.name: p.sets for p in bundle.manifest.parameters}
    for name in ("norm.running_mean", "norm.running_var", "fixed.weight", "fixed.bias", "unused"):
        assert sets[name] == ()
    assert sets["head.weight"] == ("all", "mid", "head")
    assert "norm.num_batches_tracked" not in sets
    assert "unused" not in bundle.manifest.graphs["forward"].frozen


def test_head_without_bias_is_described_as_such(bundle):
    assert bundle.manifest.head.bias is None
    assert bundle.manifest.head.features == 5


def linear(*layers) -> "torch.nn.Module":
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (linear(nn.Linear(32, 4)), "gives 4 logits for 3 labels"),
        (linear(nn.Linear(32, 3), nn.Softmax(1)), "the module returns softmax of what its head 1 gives"),
        (linear(nn.Linear(30, 3)), r"the module fails on \(4, 2, 4, 4\)"),
        (nn.Sequential(nn.Linear(4, 3)), r"head 0 is given \(4, 2, 4, 4\), expected \(n, width\)"),
        (linear(nn.Linear(32, 3)).double(), "is torch.float64; only torch.float32"),
    ],
)
def test_modules_that_cannot_be_bundles_are_refused_and_nothing_is_written(module, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export(module, SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(1))
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(x.flatten(1))


@pytest.mark.slow
def test_parameter_without_influence_is_named(tmp_path):
    with pytest.raises(ExportError, match=r"train.all/mid/head .* spare does not influence the loss"):
        export(Idle(), SPEC, tmp_path / "out")


def test_batch_norm_whose_statistics_are_the_mean_of_all_batches_is_refused_in_training(tmp_path):
    module = linear(nn.BatchNorm1d(32, momentum=None), nn.Linear(32, 3))
    export(module, SPEC, tmp_path / "frozen")
    with pytest.raises(ExportError, match=r"train.all/mid cannot be exported: 1 has momentum None"):
        export(module, replace(SPEC, batchnorm="training"), tmp_path / "out")


@pytest.mark.slow
def test_wrong_rule_is_caught_by_the_parity_gate_and_nothing_is_written(tmp_path, monkeypatch):
    from device_runtime.models.torch_modules import rules as torch_rules

    right = torch_rules.nll_loss_backward
    wrong = {torch.ops.aten.nll_loss_backward.default: lambda *args: 1.001 * right(*args)}
    monkeypatch.setattr("device_runtime.models.export.trace.RULES", torch_rules.RULES | wrong)
    message = r"graph train.all, batch 1, seed 0: grad\.1\.(weight|bias) differs from torch by .* accepted"
    with pytest.raises(ParityError, match=message):
        export(linear(nn.Linear(32, 3)), SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_stored_in_float16_take_half_and_load_as_float32(module, bundle, tmp_path):
    half = export(module, replace(SPEC, stored_as="float16", sets={"head": {}}), tmp_path / "half")
    exact, stored = bundle.weights(), half.weights()
    values = sum(value.nbytes for value in exact.values())
    assert abs(bundle.manifest.weights.bytes - half.manifest.weights.bytes - values // 2) <= 16  # its header
    for name, value in stored.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, exact[name].astype(np.float16).astype(np.float32))


def test_lower_precisions_are_further_forward_graphs(module, tmp_path, data):
    spec = replace(SPEC, precisions=("int8", "float16"), sets={"head": {}})
    model_bundle = export(module, spec, tmp_path / "lower")
    exact = OnnxModel(model_bundle).logits(data[0])
    for precision, bound in (("int8", 0.2), ("float16", 1e-2)):
        logits = open_model(model_bundle, EngineSettings(precision=precision)).logits(data[0])
        assert 0 < np.abs(logits - exact).max() < bound * np.abs(exact).max()
    with pytest.raises(BundleError, match="has no forward graph in int4; export it with --precision int4"):
        open_model(model_bundle, EngineSettings(precision="int4"))
    with pytest.raises(EngineError, match="engine torch computes in float32, not in int8"):
        open_model(Bundle.open(shipped_folder("digits-wrn-10-1")), EngineSettings("torch", "int8"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precisions": ("int4",)}, "there is no precision 'int4'; there are int8, float16"),
        ({"labels": ("a", "b", "a")}, "labels are a, b, a: one is empty or occurs twice"),
        ({"labels": ("a", "", "c")}, "labels are a, , c: one is empty"),
        ({"input": InputSpec((1 << 31, 1 << 20))}, "an input of .* cannot be made"),
        ({"objectives": ("love",)}, "there is no objective 'love'; there are train, moon"),
        ({"sets": {"toes": {}}}, "there is no tunable set 'toes'; there are all, mid, up, head, bias"),
        ({"sets": {"head": {"rank": 2}}}, "tunable set head has no settings, got rank"),
        ({"features": ("low",)}, "graph features.low needs the submodule at the end of that level"),
        (
            {"outputs": {"low": "nose"}},
            "the feature map of level low is that of 'nose', which is no submodule",
        ),
        ({"objectives": ("moon",), "ort_training": True}, "are for objective train, which is not asked for"),
    ],
)
def test_what_a_bundle_cannot_have_is_refused(module, change, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export(module, replace(SPEC, **change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_feature_maps_of_levels_are_what_the_submodules_give(module, tmp_path, data):
    spec = replace(SPEC, outputs={"low": "stem", "mid": "pool"}, features=("low", "mid"), sets={"head": {}})
    model_bundle = export(module, spec, tmp_path / "levels")
    assert model_bundle.manifest.features == {"low": (4, 4, 4), "mid": (4, 2, 2), "head": (5,)}
    with torch.no_grad():
        expected = module.stem(torch.from_numpy(data[0])).numpy()
    np.testing.assert_allclose(OnnxModel(model_bundle).level_features(data[0], "low"), expected, atol=1e-5)
    with pytest.raises(BundleError, match=r"no graph 'features\.up'"):
        OnnxModel(model_bundle).level_features(data[0], "up")


@pytest.mark.slow
def test_graphs_of_what_is_above_a_level_are_for_the_sets_above_it(module, tmp_path):
    sets = {"all": {}, "mid": {}, "head": {}}
    spec = replace(SPEC, outputs={"low": "stem", "mid": "pool"}, sets=sets)
    model_bundle = export(module, replace(spec, objectives=("above-mid", "train")), tmp_path / "above")
    assert {name for name in model_bundle.manifest.graphs if name.startswith("above")} == {"above-mid.head"}
    with pytest.raises(ExportError, match="such as tunable set up; none of all is all above it"):
        export(module, replace(spec, objectives=("above-mid",), sets={"all": {}}), tmp_path / "none")


@pytest.mark.slow
def test_batch_statistics_that_no_graph_uses_are_not_passed_over_in_silence(module, tmp_path, caplog):
    export(module, replace(SPEC, sets={"head": {}}, batchnorm="training"), tmp_path / "out")
    assert "no graph uses batch statistics" in caplog.text


def test_prototypes_move_no_running_statistics(tmp_path):
    """FedKAD on a network with batch normalisation: the samples alone move them, as without prototypes."""
    torch.manual_seed(1)
    network = build("wrn", {"in_channels": 1, "classes": 3, "norm": "batch"})
    spec = ExportSpec("it", InputSpec((1, 8, 8)), LABELS, features=("up",), batchnorm="training")
    model_bundle = export(network, replace(spec, objectives=("distil", "prototype")), tmp_path / "out")
    model, rng = OnnxModel(model_bundle), np.random.default_rng(0)
    x, y = rng.normal(size=(6, 1, 8, 8)).astype(np.float32), np.zeros(6, np.int64)
    target = {"target": rng.normal(size=(6, 3)).astype(np.float32)}
    maps = rng.normal(3, 1, (3, 64, 2, 2)).astype(np.float32)
    of_classes = {"prototypes": maps, "present": np.ones(3, np.float32), "beta": np.float32(1)}
    moved, losses = [], []
    for objective, extras in (("distil", target), ("prototype", {**target, **of_classes})):
        trainer = model.trainer("all", objective)
        losses.append(trainer.loss_and_grads(x, y, extras))
        moved.append(trainer.statistics.vector.copy())
    assert losses[0] < losses[1]
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-5, atol=1e-6)
    assert not np.allclose(moved[0], model.trainer("all", "distil").statistics.vector)


class Padded(nn.Module):
    """Right for every token id but padding, where tracing goes wrong on purpose."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(30_000, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        wrong = float(isinstance(ids, torch._subclasses.FakeTensor))
        real = 1 - wrong * (ids == self.padding).to(torch.float32)
        return self.head((self.embedding(ids) * real.unsqueeze(2)).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("padding", [0, 1, 29_999])
def test_the_gate_draws_the_ids_that_may_mean_padding(padding, tmp_path):
    torch.manual_seed(0)
    inputs = InputSpec((16,), dtype="int64", vocabulary=30_000)
    spec = ExportSpec("padded", inputs, ("a", "b", "c"), sets={"head": {}})
    with pytest.raises(ParityError, match="graph forward"):
        export(Padded(padding), spec, tmp_path / "out")


class OfSensors(nn.Module):
    """Convolutions, normalisation and pooling along time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(3, 8, 5, padding=2)
        self.norm = nn.BatchNorm1d(8)
        self.conv2 = nn.Conv1d(8, 16, 3, stride=2, padding=1, groups=2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = nn.functional.max_pool1d(torch.relu(self.norm(self.conv1(x))), 2)
        x = nn.functional.avg_pool1d(torch.relu(self.conv2(x)), 2)
        return self.head(nn.functional.adaptive_avg_pool1d(x, 1).flatten(1))


@pytest.mark.slow
def test_a_network_of_one_dimensional_convolutions_learns_to_tell_frequencies(tmp_path):
    torch.manual_seed(0)
    spec = ExportSpec("sensors", InputSpec((3, 64)), ("a", "b", "c", "d"), batchnorm="training")
    model = OnnxModel(export(OfSensors(), spec, tmp_path / "sensors"))
    rng, time = np.random.default_rng(0), np.arange(64)
    y = np.arange(128) % 4
    phases = rng.uniform(0, 2 * np.pi, (128, 3, 1))
    x = np.sin(2 * np.pi * (1 + 2 * y[:, None, None]) * time / 64 + phases).astype(np.float32)
    trainer, losses = model.trainer("all"), []
    steps = Sgd(lr=0.1, momentum=0.9).start(trainer.params.vector)
    for _ in range(60):
        losses.append(trainer.loss_and_grads(x, y))
        steps.step(trainer.params.vector, trainer.grads.vector)
    assert losses[0] > 1.2
    assert losses[-1] < 0.3
