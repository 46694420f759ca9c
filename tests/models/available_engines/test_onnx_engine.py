import subprocess
import sys
from types import ModuleType

import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import BundleError, EngineError, TensorError

SETS = ("all", "mid", "head")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.standard_normal((21, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 21)


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def network(torch, digits):
    from device_runtime.models.networks.convolutional import wrn

    module = wrn(10, 1, 1, 10).eval()
    module.load_state_dict({name: torch.from_numpy(w) for name, w in digits.weights().items()})
    return module


def torch_loss_and_grads(torch, network, x, y) -> tuple[float, dict[str, np.ndarray]]:
    network.zero_grad()
    loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    return loss.item(), {n: p.grad.numpy() for n, p in network.named_parameters()}


def test_logits_and_features_are_those_of_torch_across_uneven_batches(torch, digits, network, data):
    model: DeviceModel = open_model(digits, batch=8)
    x, _ = data
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    both = model.forward(x)
    np.testing.assert_allclose(both.logits, expected, atol=2e-5)
    head = network.head
    rebuilt = both.features @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(rebuilt, expected, atol=2e-5)
    np.testing.assert_array_equal(model.logits(x), both.logits)
    np.testing.assert_array_equal(model.features(x), both.features)


@pytest.mark.parametrize("tunable", SETS)
@pytest.mark.parametrize("batch", [32, 8])  # in one batch, and in micro-batches of 8, 8 and 5
def test_loss_and_gradients_are_those_of_torch(torch, digits, network, data, tunable, batch):
    x, y = data
    loss, grads = torch_loss_and_grads(torch, network, x, y)
    trainer = OnnxModel(digits, batch=batch).trainer(tunable)
    assert trainer.loss_and_grads(x, y) == pytest.approx(loss, abs=2e-6)
    assert set(trainer.grads.views) == set(digits.manifest.names(tunable))
    for name, grad in trainer.grads.views.items():
        np.testing.assert_allclose(grad, grads[name], atol=3e-6, err_msg=name)


@pytest.mark.parametrize("tunable", SETS)
def test_probe_sees_parameters_changed_in_place(digits, data, tunable):
    x, y = data
    model = OnnxModel(digits, batch=8)
    probe, trainer = model.probe(tunable), model.trainer(tunable)
    before = probe.loss(x, y)
    assert before == pytest.approx(trainer.loss_and_grads(x, y), abs=1e-6)
    slope = float(np.square(trainer.grads.vector, dtype=np.float64).sum())
    step = 1e-3
    probe.params.vector -= np.float32(step) * trainer.grads.vector
    assert before - probe.loss(x, y) == pytest.approx(step * slope, rel=0.1)


def test_probes_and_trainers_do_not_touch_the_model_or_each_other(digits, data):
    x, y = data
    model = OnnxModel(digits)
    first, second = model.probe("all"), model.probe("all")
    expected, logits = second.loss(x, y), model.logits(x)
    first.params.vector[:] = 0
    assert first.loss(x, y) == pytest.approx(np.log(10), abs=1e-6)  # all logits are 0
    assert second.loss(x, y) == expected
    np.testing.assert_array_equal(model.logits(x), logits)


def test_equal_inputs_give_equal_bits(digits, data):
    x, y = data
    runs = []
    for _ in range(2):
        trainer = OnnxModel(digits, batch=8).trainer("all")
        runs.append((trainer.loss_and_grads(x, y), trainer.grads.vector.tobytes()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("batch", [1, 3, 8, 20, 64])
def test_results_do_not_depend_on_how_samples_are_batched(digits, data, batch):
    """Logits to the last bit; means and sums to float32 rounding, an uneven last batch included."""
    x, y = data
    whole, parts = OnnxModel(digits, batch=21), OnnxModel(digits, batch=batch)
    np.testing.assert_allclose(parts.logits(x), whole.logits(x), rtol=1e-6, atol=1e-6)
    assert parts.probe("all").loss(x, y) == pytest.approx(whole.probe("all").loss(x, y), rel=3e-7)
    single, many = whole.trainer("all"), parts.trainer("all")
    assert many.loss_and_grads(x, y) == pytest.approx(single.loss_and_grads(x, y), rel=3e-7)
    np.testing.assert_allclose(many.grads.vector, single.grads.vector, atol=1e-6)


def test_the_probed_loss_is_the_mean_of_the_samples_own_losses(digits, data):
    x, y = data
    probe = OnnxModel(digits, batch=8).probe("head")
    alone = [probe.loss(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    assert probe.loss(x, y) == pytest.approx(float(np.mean(alone)), rel=3e-7)
    assert max(alone) > 1.3 * min(alone)  # otherwise any weighting would do


def test_samples_need_not_be_contiguous(digits, data):
    x, y = data
    wide = np.zeros((21, 1, 8, 16), np.float32)
    wide[..., ::2] = x
    labels = np.repeat(y, 2)[::2].astype(np.int32)
    model = OnnxModel(digits, batch=8)
    np.testing.assert_array_equal(model.logits(wide[..., ::2]), model.logits(x))
    assert model.probe("all").loss(wide[..., ::2], labels) == model.probe("all").loss(x, y)
    trainer = model.trainer("all")
    expected = trainer.loss_and_grads(x, y), trainer.grads.vector.tobytes()
    assert (trainer.loss_and_grads(wide[..., ::2], labels), trainer.grads.vector.tobytes()) == expected


def test_weights_that_are_not_finite_are_refused(digits):
    with pytest.raises(TensorError, match=r"head.bias has 1 non-finite value$"):
        OnnxModel(digits).load({"head.bias": np.array([np.nan] + [0] * 9, np.float32)})


def test_unloading_and_loading_again_gives_the_same_bits(digits, data):
    x, y = data
    model = OnnxModel(digits)
    logits, loss = model.logits(x), model.probe("all").loss(x, y)
    model.unload()
    np.testing.assert_array_equal(model.logits(x), logits)
    assert model.probe("all").loss(x, y) == loss


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
def test_rounds_of_loading_and_unloading_do_not_grow_the_process(digits):
    code = (
        "import re, numpy as np\nfrom device_runtime.models.bundles.bundle import Bundle, find_bundle\n"
        "from device_runtime.models.available_engines.onnx_engine import OnnxModel\n"
        "model = OnnxModel(Bundle.open(find_bundle('digits-wrn-10-1')))\n"
        "x, y = np.zeros((32, 1, 8, 8), np.float32), np.zeros(32, np.int64)\n"
        "def resident():\n"
        "    return 1024 * int(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "def rounds(count):\n"
        "    for _ in range(count):\n"
        "        model.load({k: v + np.float32(1e-4) for k, v in model.weights.items()})\n"
        "        model.logits(x); model.trainer('head').loss_and_grads(x, y); model.unload()\n"
        "rounds(10); before = resident(); rounds(60); print(resident() - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 60 * 310_000 / 3  # the weights are 310 KB: a third of them kept each round


def test_loaded_weights_are_used_and_only_stale_sessions_are_made_anew(digits, data):
    x, _ = data
    watch = Recorder()
    model = OnnxModel(digits, watch=watch)
    model.logits(x)
    model.trainer("all")
    model.trainer("head")
    zeros = {"head.weight": np.zeros((10, 64), np.float32), "head.bias": np.arange(10, dtype=np.float32)}
    model.load(zeros)
    np.testing.assert_array_equal(model.logits(x), np.tile(np.arange(10, dtype=np.float32), (21, 1)))
    assert not model.trainer("all").params.views["head.weight"].any()
    model.trainer("head")
    assert watch.loaded == ["forward", "train.all", "train.head", "forward"]


def test_loaded_weights_are_copied_and_weights_are_read_only(digits):
    bias = np.ones(10, np.float32)
    model = OnnxModel(digits, {"head.bias": bias})
    bias[:] = 5
    assert (model.weights["head.bias"] == 1).all()
    with pytest.raises(ValueError, match="read-only"):
        model.weights["head.bias"][0] = 2
    with pytest.raises(TypeError):
        model.weights["head.bias"] = bias


def test_weights_that_do_not_fit_are_refused_and_leave_the_model_as_it_was(digits):
    model = OnnxModel(digits)
    with pytest.raises(TensorError, match=r"head.bias is \(3,\), expected \(10,\)"):
        model.load({"head.bias": np.zeros(3, np.float32)})
    with pytest.raises(TensorError, match="ghost not expected"):
        model.load({"ghost": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(model.weights["head.bias"], digits.weights()["head.bias"])


class Recorder:
    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.runs: list[tuple[str, int]] = []

    def will_load(self, name, graph):
        assert graph.bytes > 0
        self.loaded.append(name)

    def ran(self, name, graph, samples, seconds):
        assert 0 < seconds < 10
        self.runs.append((name, samples))


def test_watch_is_told_of_every_load_and_run(digits, data):
    x, y = data
    watch = Recorder()
    model = OnnxModel(digits, batch=8, watch=watch)
    model.logits(x)
    model.probe("head").loss(x[:8], y[:8])
    assert watch.loaded == ["forward", "loss.head"]
    assert watch.runs == [("forward", 8), ("forward", 8), ("forward", 5), ("loss.head", 8)]


def test_watch_may_refuse_a_graph(digits, data):
    class TooBig(Exception):
        pass

    class Refuser(Recorder):
        def will_load(self, name, graph):
            raise TooBig

    with pytest.raises(TooBig):
        OnnxModel(digits, watch=Refuser()).logits(data[0])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 64), np.float32), r"x is \(2, 64\), digits-wrn-10-1 takes \(n, 1, 8, 8\)"),
        (np.zeros((2, 1, 8, 8)), "x is float64, digits-wrn-10-1 takes float32"),
    ],
)
def test_wrong_inputs_are_refused_with_what_was_expected(digits, x, message):
    with pytest.raises(EngineError, match=message):
        OnnxModel(digits).logits(x)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([0, 10]), "y holds label 10, digits-wrn-10-1 has labels 0 to 9"),
        (np.array([-1, 0]), "y holds label -1"),
        (np.array([0]), r"y is \(1,\), expected \(2,\)"),
        (np.array([0.0, 1.0]), "y is float64, expected integers"),
    ],
)
def test_wrong_labels_are_refused_with_what_was_expected(digits, y, message):
    with pytest.raises(EngineError, match=message):
        OnnxModel(digits).probe("head").loss(np.zeros((2, 1, 8, 8), np.float32), y)


def test_no_samples_have_no_logits_and_no_loss(digits):
    nothing = np.zeros((0, 1, 8, 8), np.float32)
    assert OnnxModel(digits).logits(nothing).shape == (0, 10)
    with pytest.raises(EngineError, match="at least one"):
        OnnxModel(digits).trainer("head").loss_and_grads(nothing, np.zeros(0, np.int64))


def test_unknown_sets_and_settings_are_refused(digits):
    with pytest.raises(BundleError, match="no tunable set 'some'"):
        OnnxModel(digits).probe("some")
    with pytest.raises(EngineError, match="batch is 0"):
        OnnxModel(digits, batch=0)


def test_refused_graph_is_an_engine_error_of_one_line(digits, monkeypatch):
    without_weights = digits.graph("forward").replace(b"Conv", b"Relu")
    monkeypatch.setattr(
        "device_runtime.models.bundles.bundle.Bundle.graph", lambda self, name: without_weights
    )
    with pytest.raises(EngineError, match="ONNX Runtime, graph forward") as caught:
        OnnxModel(digits).logits(np.zeros((1, 1, 8, 8), np.float32))
    assert "\n" not in str(caught.value)


def test_graph_that_is_not_allowed_is_a_bundle_error_of_one_line(digits, monkeypatch):
    monkeypatch.setattr("device_runtime.models.bundles.bundle.Bundle.graph", lambda self, name: b"not onnx")
    with pytest.raises(BundleError, match="graph forward: no protocol buffer") as caught:
        OnnxModel(digits).logits(np.zeros((1, 1, 8, 8), np.float32))
    assert "\n" not in str(caught.value)


def test_importing_models_loads_neither_torch_nor_onnx_nor_onnxruntime():
    code = (
        "import sys, device_runtime.models.available_engines.onnx_engine, "
        "device_runtime.models.training.heads, "
        "device_runtime.models.bundles.bundle, device_runtime.cli.research.inspect, "
        "device_runtime.cli.research.export\n"
        "print([name for name in ('torch', 'onnx', 'onnxruntime') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="reads peak memory from /proc")
def test_training_takes_about_the_memory_that_was_predicted(digits):
    code = (
        "import re, numpy as np\nfrom device_runtime.models.bundles.bundle import Bundle, find_bundle\n"
        "from device_runtime.models.available_engines.onnx_engine import OnnxModel\n"
        "trainer = OnnxModel(Bundle.open(find_bundle('digits-wrn-10-1')), batch=1024).trainer('all')\n"
        "x, y = np.zeros((1024, 1, 8, 8), np.float32), np.zeros(1024, np.int64)\n"
        "def peak(): return 1024 * int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = peak(); trainer.loss_and_grads(x, y); print(peak() - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    predicted = digits.manifest.graphs["train.all"].memory_bytes(1024)
    assert 0.4 * predicted < int(out.stdout) < 1.2 * predicted


def test_running_a_bundle_does_not_load_torch():
    code = (
        "import sys, numpy as np\nfrom device_runtime.models.bundles.bundle import Bundle, find_bundle\n"
        "from device_runtime.models.available_engines.onnx_engine import OnnxModel\n"
        "m = OnnxModel(Bundle.open(find_bundle('digits-wrn-10-1')))\n"
        "m.trainer('head').loss_and_grads(np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))\n"
        "print([name for name in ('torch', 'onnx') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_batch_whose_activations_are_too_many_is_several_runs_with_the_same_gradient(digits, data):
    x, y = data
    whole = OnnxModel(digits).trainer("all")
    loss = whole.loss_and_grads(x, y)
    graph = digits.manifest.graphs["train.all"]
    watch = Recorder()
    cut = OnnxModel(digits, watch=watch, run_bytes=graph.activation_bytes(2)).trainer("all")
    assert cut.loss_and_grads(x, y) == pytest.approx(loss, abs=1e-6)
    sizes = [samples for _, samples in watch.runs]
    assert max(sizes) == 2
    assert sum(sizes) == len(x)
    np.testing.assert_allclose(cut.grads.vector, whole.grads.vector, atol=1e-6)


def test_outputs_of_another_shape_than_the_manifest_says_are_refused(digits, data):
    head = msgspec.structs.replace(digits.manifest.head, features=1 << 30)
    wrong = Bundle(digits.path, msgspec.structs.replace(digits.manifest, head=head))
    with pytest.raises(
        EngineError, match=r"graph forward gives features of \(\d+, 64\), expected \('n', 1073741824\)"
    ):
        OnnxModel(wrong).features(data[0])
