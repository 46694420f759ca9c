import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.tensors import TensorSpec
from device_runtime.models.engines import onnx_layout
from device_runtime.models.engines.onnx_layout import ConstantProbe
from device_runtime.models.engines.onnx_session import OnnxProbe, has_convolution, rows_beside, with_constants
from device_runtime.models.errors import BundleError


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    return rng.standard_normal((21, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 21)


def disturbed(probe):
    z = np.random.default_rng(8).standard_normal(probe.params.vector.size, np.float32)
    probe.params.vector += np.float32(0.02) * z


LAID_OUT, REMADE, WITH_INPUTS = "laid out", "remade", "with inputs"
WAYS = {LAID_OUT: (0, 10), REMADE: (0, 0), WITH_INPUTS: (10**15, 10)}


@pytest.fixture
def going(monkeypatch):
    """Makes probes go a way, whatever the number of samples."""

    def go(way):
        flops, remade = WAYS[way]
        monkeypatch.setattr(onnx_layout, "FLOPS_A_TENSOR", flops or 1e-9)
        monkeypatch.setattr(onnx_layout, "REMADE", remade)
        monkeypatch.setattr(onnx_layout, "MOST_BYTES", 0 if way == REMADE else 1 << 30)

    return go


@pytest.mark.parametrize("tunable", ["all", "mid"])
def test_a_loss_with_constants_is_that_with_inputs(digits, data, going, tunable):
    losses = {}
    for way in WAYS:
        going(way)
        probe = OnnxModel(digits, batch=8).probe(tunable)
        assert isinstance(probe, ConstantProbe)
        losses[way] = [probe.loss(*data)]
        disturbed(probe)
        losses[way].append(probe.loss(*data))
    assert losses[LAID_OUT] == pytest.approx(losses[WITH_INPUTS], rel=2e-6)
    assert losses[REMADE] == pytest.approx(losses[WITH_INPUTS], rel=2e-6)
    assert abs(losses[LAID_OUT][1] - losses[LAID_OUT][0]) > 1e-3


@pytest.mark.parametrize("way", WAYS)
def test_the_same_parameters_give_the_same_bits_again(digits, data, going, way):
    going(way)
    first, second = (OnnxModel(digits).probe("all") for _ in range(2))
    start = first.params.vector.copy()
    loss = first.loss(*data)
    disturbed(first)
    assert first.loss(*data) != loss
    np.copyto(first.params.vector, start)
    assert first.loss(*data) == loss == second.loss(*data)


@pytest.mark.parametrize("way", WAYS)
def test_new_weights_of_the_model_do_not_reach_a_probe(digits, data, going, way):
    going(way)
    model = OnnxModel(digits)
    probe = model.probe("mid")
    loss = probe.loss(*data)
    model.load({name: np.zeros_like(value) for name, value in digits.weights().items() if value.ndim == 4})
    new = model.probe("mid")
    assert new.loss(*data) != loss
    assert probe.loss(*data) == loss  # also behind one that has other frozen tensors
    assert new.loss(*data) != loss


def test_which_way_depends_on_the_number_of_samples(digits, data, monkeypatch):
    x, y = data
    flops, tensors = digits.entry("loss.all").flops, len(digits.manifest.stored())
    monkeypatch.setattr(onnx_layout, "FLOPS_A_TENSOR", 10 * flops / tensors)
    monkeypatch.setattr(onnx_layout, "REMADE", 2)
    monkeypatch.setattr(onnx_layout, "MOST_BYTES", 0)
    loaded = []

    class Watch:
        def will_load(self, name, graph):
            loaded.append(len(graph.trainable))

        def ran(self, name, graph, samples, seconds):
            assert name == "loss.all"

    probe = OnnxModel(digits, watch=Watch()).probe("all")
    assert not loaded
    trained = len(digits.manifest.names("all"))
    for samples, builds in ((9, [trained]), (9, []), (19, []), (20, [0]), (20, [0]), (3, [])):
        probe.loss(x[:samples], y[:samples])
        assert loaded == builds
        loaded.clear()


def test_what_is_laid_out_serves_every_probe_until_the_model_is_unloaded(digits, data, going):
    going(LAID_OUT)
    loaded = []

    class Watch:
        def will_load(self, name, graph):
            loaded.append(graph.trainable)

        def ran(self, name, graph, samples, seconds):
            assert name == "loss.all"

    model = OnnxModel(digits, watch=Watch())
    first = model.probe("all").loss(*data)
    count = len(loaded)
    assert len(loaded[-1]) > 10 and not set(loaded[-1]) <= set(digits.manifest.names("all"))
    assert model.probe("all").loss(*data) == first
    assert len(loaded) == count
    model.unload()
    assert model.probe("all").loss(*data) == first
    assert len(loaded) == 2 * count


def test_a_head_alone_keeps_its_one_session(digits, data):
    assert isinstance(OnnxModel(digits).probe("head"), OnnxProbe)


def test_a_graph_is_searched_for_convolutions(digits):
    assert has_convolution(digits.graph("loss.all"))
    assert not has_convolution(b"")


def test_inputs_become_initialisers_of_the_same_names(digits):
    onnx = pytest.importorskip("onnx")
    specs = digits.manifest.specs("mid")
    before = onnx.load_from_string(digits.graph("loss.mid"))
    after = onnx.load_from_string(with_constants(digits.graph("loss.mid"), specs))
    names = {spec.name for spec in specs}
    assert {i.name for i in before.graph.input} - {i.name for i in after.graph.input} == names
    shapes = {i.name: tuple(i.dims) for i in after.graph.initializer if i.name in names}
    assert shapes == {spec.name: spec.shape for spec in specs}
    assert after.graph.node == before.graph.node and after.graph.output == before.graph.output


def test_what_is_no_model_is_refused():
    with pytest.raises(BundleError):
        with_constants(b"\x3a\x05abc", [TensorSpec("w", (1,))])


def test_runs_are_smaller_by_what_the_parameters_take(digits):
    graph = msgspec.structs.replace(digits.entry("loss.all"), bytes_per_sample=1000)
    assert [rows_beside(count, graph, 32) for count in (0, 1, 1000, 1001, 15_000, 99_000)] == [
        32,
        31,
        31,
        30,
        17,
        16,
    ]
    assert rows_beside(10**9, graph, 1) == 1


def test_where_no_file_can_be_written_another_way_gives_the_loss(digits, data, going, monkeypatch):
    going(REMADE)
    expected = OnnxModel(digits).probe("all").loss(*data)
    going(LAID_OUT)
    monkeypatch.setattr(onnx_layout, "REMADE", 0)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(onnx_layout.tempfile, "TemporaryDirectory", full)
    assert OnnxModel(digits).probe("all").loss(*data) == expected
