"""Training graphs in ONNX Runtime's blocked layout, against torch and the graphs in the usual layout."""

import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from device_runtime.models.available_engines import onnx_engine
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.engines.base import even_share
from device_runtime.models.engines.blocked import layers as blocked_session
from device_runtime.models.engines.blocked.layers import block_size, blocked_graph
from device_runtime.models.errors import BundleError
from device_runtime.models.export.export import ExportSpec, export

nn = torch.nn
needs_blocks = pytest.mark.skipif(not block_size(), reason="this ONNX Runtime has no blocked layout")
SIZE = (3, 15, 13)
CLASSES = 5


class Everything(nn.Module):
    """Each layer that can be in blocks, at sizes that no stride divides, and some that cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.ReLU())
        self.pools = nn.ModuleList([nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(3, 2, 1)])
        self.wide = nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6())
        self.short = nn.Conv2d(16, 24, 1, 2)
        self.each = nn.Sequential(nn.Conv2d(24, 24, 3, 1, 1, groups=24), nn.BatchNorm2d(24), nn.ReLU6())
        self.fewer = nn.Sequential(
            nn.Conv2d(24, 24, 3, 2, 1, groups=24), nn.Conv2d(48, 32, 5, 3, 2), nn.Tanh()
        )
        self.other = nn.Conv2d(32, 36, (3, 2), (2, 1), (1, 0))  # too wide with padding for blocks of 16
        self.spaced = nn.Conv2d(36, 32, 3, padding=2, dilation=2)
        self.narrow = nn.Sequential(nn.Conv2d(32, 12, 1), nn.ReLU(), nn.Conv2d(12, 32, 1))  # as of an adapter
        self.dense = nn.Linear(32, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        x = self.pools[0](self.stem(x))
        x = self.wide(x) + self.short(x)
        x = torch.cat((self.fewer[0](self.each(x) * x), self.pools[1](x)), 1)
        x = self.spaced(self.other(self.fewer[1:](x)))
        x = x + self.narrow(x)
        return self.head(self.dense(x.flatten(1)))


@pytest.fixture(scope="module", params=["frozen", "training"])
def bundle(request, tmp_path_factory) -> Bundle:
    torch.manual_seed(0)
    labels = tuple(map(str, range(CLASSES)))
    sets, objectives = {"all": {}, "mid": {}}, ("train", "moon")[: 1 + (request.param == "frozen")]
    spec = ExportSpec(
        "all", InputSpec(SIZE), labels, sets=sets, batchnorm=request.param, objectives=objectives
    )
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("device_runtime").addHandler(handler)
    try:
        exported = export(Everything(), spec, tmp_path_factory.mktemp("b") / request.param)
    finally:
        logging.getLogger("device_runtime").removeHandler(handler)
    assert not [
        message for message in messages if "slower" in message
    ]  # the export has compared it with torch
    return exported


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, *SIZE), np.float32), rng.integers(0, CLASSES, n)


def extras(model: OnnxModel, objective: str, n: int) -> dict[str, np.ndarray]:
    specs = model.manifest.graphs[f"{objective}.all"].extras
    return {e.name: np.full((n, *e.shape) if e.per_sample else e.shape, 0.5, np.float32) for e in specs}


@needs_blocks
@pytest.mark.parametrize("objective", ["train", "moon"])
@pytest.mark.parametrize("tunable", ["all", "mid"])
@pytest.mark.parametrize("n", [8, 16, 19])  # part of a block, a block, a block and a part
def test_gradients_are_those_of_the_usual_layout(bundle, tunable, n, objective):
    if f"{objective}.{tunable}" not in bundle.manifest.graphs:
        pytest.skip("one objective will do with batch statistics")
    model = OnnxModel(bundle)
    x, y = samples(n)
    inputs = extras(model, objective, n)
    usual, blocked = (model.trainer(tunable, objective, batch=batch) for batch in (0, n))
    assert model.blocked_session(f"{objective}.{tunable}", n) is not None
    losses = [trainer.loss_and_grads(x, y, inputs) for trainer in (usual, blocked)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    largest = np.abs(usual.grads.vector).max()
    for name, expected in usual.grads.views.items():
        # a value next to the kink of a ReLU may fall on either side
        off = np.abs(blocked.grads.views[name] - expected)
        assert expected.any(), name
        assert np.quantile(off, 0.9) <= 1e-3 * np.abs(expected).max() + 2e-6 * largest, name
    np.testing.assert_allclose(blocked.statistics.vector, usual.statistics.vector, atol=1e-5)


@needs_blocks
def test_layers_along_one_dimension_are_in_blocks_too(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(3, 16, 5, 2, 2), nn.GroupNorm(4, 16), nn.Tanh(), nn.MaxPool1d(2),
        nn.Conv1d(16, 16, 3, 2, 1, groups=16), nn.BatchNorm1d(16), nn.Conv1d(16, 32, 3), nn.Tanh(),
        nn.Flatten(), nn.Linear(32 * 4, CLASSES),
    )  # fmt: skip
    labels = tuple(map(str, range(CLASSES)))
    spec = ExportSpec("along", InputSpec((3, 45)), labels, sets={"all": {}})
    model = OnnxModel(export(network, spec, tmp_path / "b"))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 3, 45), np.float32), rng.integers(0, CLASSES, 10)
    usual, blocked = (model.trainer("all", batch=batch) for batch in (0, 10))
    loaded = model.blocked_session("train.all", 10)
    assert loaded is not None
    assert usual.loss_and_grads(x, y) == pytest.approx(blocked.loss_and_grads(x, y), rel=1e-5)
    for name, expected in usual.grads.views.items():
        np.testing.assert_allclose(blocked.grads.views[name], expected, atol=1e-4 * np.abs(expected).max())


@needs_blocks
def test_other_numbers_of_samples_run_in_the_usual_layout(bundle):
    model = OnnxModel(bundle)
    x, y = samples(21)
    usual, blocked = (model.trainer("all", batch=batch) for batch in (0, 16))
    for n in (5, 15):
        assert usual.loss_and_grads(x[:n], y[:n]) == blocked.loss_and_grads(x[:n], y[:n])
        np.testing.assert_array_equal(usual.grads.vector, blocked.grads.vector)
    if not usual.statistics.views:
        assert usual.loss_and_grads(x, y) == pytest.approx(blocked.loss_and_grads(x, y), rel=1e-5)  # 16 and 5


@needs_blocks
def test_gradients_of_equal_micro_batches_are_summed(bundle):
    if any(graph.statistics for graph in bundle.manifest.graphs.values()):
        pytest.skip("statistics of the batch are those of a micro-batch")
    x, y = samples(32)
    whole = OnnxModel(bundle).trainer("all", batch=32)
    parts = OnnxModel(bundle, batch=10).trainer("all", batch=32)
    assert whole.loss_and_grads(x, y) == pytest.approx(parts.loss_and_grads(x, y), rel=1e-5)
    off = np.abs(whole.grads.vector - parts.grads.vector)
    assert np.quantile(off, 0.9) < 1e-4 * np.abs(whole.grads.vector).max()


def test_micro_batches_are_equal_if_that_takes_at_most_twice_as_many():
    assert even_share(20, 32) == 20
    assert even_share(32, 12) == 8
    assert even_share(30, 12) == 10
    assert even_share(31, 12) == 12  # 31 is prime


def test_weights_that_are_loaded_are_used(bundle):
    model = OnnxModel(bundle)
    x, y = samples(16)
    before = model.trainer("mid", batch=16).loss_and_grads(x, y)
    assert "stem.1.bias" in bundle.manifest.graphs["train.mid"].frozen
    model.load({"stem.1.bias": model.weights["stem.1.bias"] + 1})
    after = model.trainer("mid", batch=16).loss_and_grads(x, y)
    assert after != before
    assert after == pytest.approx(model.trainer("mid").loss_and_grads(x, y), rel=1e-5)


def shapes(bundle: Bundle) -> dict[str, tuple[int, ...]]:
    return {spec.name: spec.shape for spec in bundle.manifest.stored()} | {"x": SIZE}


@pytest.mark.parametrize("block", [4, 8, 16])  # whatever this processor has
def test_the_graph_is_a_right_one_in_blocks_of_every_size(bundle, block):
    blocked = blocked_graph(bundle.graph("train.all"), shapes(bundle), 12, block)
    graph = onnx.load_from_string(blocked.onnx).graph
    values = {i.name for i in (*graph.input, *graph.initializer)}
    for node in graph.node:
        assert values.issuperset(name for name in node.input if name)
        assert values.isdisjoint(node.output)
        values.update(node.output)
    assert [o.name for o in graph.output] == [
        o.name for o in onnx.load_from_string(bundle.graph("train.all")).graph.output
    ]
    kinds = [node.op_type for node in graph.node if node.domain]
    assert kinds.count("Conv") > 20


def test_a_network_mostly_of_products_stays_as_it_is(tmp_path):
    """Such as a vision transformer, whose only convolution makes the tokens."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())]
    network = nn.Sequential(
        nn.Conv2d(3, 16, 4, 4),
        nn.Flatten(2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        *layers,
        nn.Linear(16, 2),
    )
    bundle = export(
        network, ExportSpec("n", InputSpec((3, 8, 8)), ("a", "b"), sets={"all": {}}), tmp_path / "b"
    )
    assert b'"layer":"convolution_backward"' in bundle.graph("train.all")
    assert OnnxModel(bundle).blocked_session("train.all", 16) is None


def test_a_graph_without_descriptions_stays_as_it_is(bundle):
    assert blocked_graph(bundle.graph("forward"), shapes(bundle), 16, 16) is None


def changed(bundle: Bundle, old: str, new: str) -> bytes:
    model = onnx.load_from_string(bundle.graph("train.all"))
    for node in model.graph.node:
        node.doc_string = node.doc_string.replace(old, new)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"output":1', '"output":7'),
        ('"inputs":["', '"inputs":["x","'),
        ('"numbers":[', '"numbers":["a",'),
        ("{", "[["),
        ("[0,", "[0,1,"),
        ("[0,16,", "[0,99999999,"),
        ('"numbers":[2.0', '"numbers":[1e400'),
    ],
)
def test_a_wrong_description_is_an_error(bundle, old, new):
    with pytest.raises(BundleError, match="describes its layers wrongly"):
        blocked_graph(changed(bundle, old, new), shapes(bundle), 16, 16)


class Offering:
    """A bundle with another graph."""

    def __init__(self, bundle: Bundle, onnx: bytes) -> None:
        self._bundle, self._onnx = bundle, onnx

    def __getattr__(self, name: str):
        return getattr(self._bundle, name)

    def graph(self, name: str) -> bytes:
        return self._onnx if name == "train.all" else self._bundle.graph(name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"numbers":[2.0,2.0', '"numbers":[0.0,0.0'),
        ('"numbers":[2.0', '"numbers":[1e9'),
        ("[0,24,8,7]", "[0,24,8000,7]"),
    ],
)
def test_impossible_layers_are_left_as_they_are(bundle, old, new):
    blocked = blocked_graph(changed(bundle, old, new), shapes(bundle), 16, 16)
    assert len(blocked.onnx) < 4 * len(bundle.graph("train.all"))


@needs_blocks
@pytest.mark.parametrize("wrong", [('"output":1', '"output":7'), ("[0,24,8,7]", "[0,48,8,7]")])
def test_the_usual_layout_is_used_if_the_other_cannot_be(bundle, caplog, wrong):
    model = OnnxModel(Offering(bundle, changed(bundle, *wrong)))
    x, y = samples(16)
    trainer = model.trainer("all", batch=16)
    assert "cannot be used in the blocked layout" in caplog.text
    assert trainer.loss_and_grads(x, y) == OnnxModel(bundle).trainer("all").loss_and_grads(x, y)


def test_a_runtime_without_the_layout_uses_the_usual_one(bundle, monkeypatch):
    monkeypatch.setattr(blocked_session, "block_size", lambda: 0)
    model = OnnxModel(bundle)
    x, y = samples(16)
    assert model.blocked_session("train.all", 16) is None
    loss = model.trainer("all", batch=16).loss_and_grads(x, y)
    assert loss == model.trainer("all").loss_and_grads(x, y)


def test_the_probe_says_no_where_the_operators_are_missing_or_wrong(monkeypatch):
    monkeypatch.setattr(blocked_session, "DOMAIN", "com.example")
    assert blocked_session.block_size.__wrapped__() == 0


def test_few_samples_are_not_worth_a_session(bundle):
    assert OnnxModel(bundle).blocked_session("train.all", onnx_engine.FEWEST - 1) is None
