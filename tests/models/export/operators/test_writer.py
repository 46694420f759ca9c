"""Every operator that is written here computes what torch computes, at batches other than the traced one."""

import logging

import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from device_runtime.models.errors import ExportError
from device_runtime.models.export import graph as torch_graph
from device_runtime.models.export.candidates import WantedGraphs, candidates
from device_runtime.models.export.parity import check_parity
from device_runtime.models.export.trace import TRACED_BATCH
from device_runtime.models.torch_modules.functional_module import FunctionalModule

nn = torch.nn
functional = nn.functional
SHAPE = (4, 6, 6)  # of one sample
FORWARD = WantedGraphs({}, (), (), False)


class Around(nn.Module):
    """A function of x, and a head on whatever comes out of it."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        out = function(torch.randn(TRACED_BATCH, *SHAPE))
        self.head = nn.Linear(out[0].numel(), 3)

    def forward(self, x):
        return self.head(self.function(x).to(torch.float32).flatten(1))


def subject_of(function) -> FunctionalModule:
    torch.manual_seed(0)
    return FunctionalModule(Around(function).eval(), "head", torch.randn(TRACED_BATCH, *SHAPE))


WEIGHT = torch.linspace(-1, 1, 8 * 4 * 9).reshape(8, 4, 3, 3)
UP = WEIGHT.transpose(0, 1)
DEPTHWISE = torch.linspace(-1, 1, 4 * 9).reshape(4, 1, 3, 3)
PLACES = torch.tensor([2, 0, 3])
WRITTEN = {
    "numbers": lambda x: (2 * x + 1 - x / 3) * (1 - x),
    "alpha": lambda x: torch.add(x, x * x, alpha=0.5),
    "batch size as a number": lambda x: x * x.shape[0] / (2 * x.shape[0]),
    "comparisons": lambda x: torch.where((x > 0) & (x <= 1) | (x < -1), x, torch.zeros_like(x)),
    "not equal": lambda x: (x.round() != 0).float() + (x >= 0.5) + ~(x == 0),
    "maximum": lambda x: torch.maximum(x, x.flip(2)) + torch.minimum(x, x.flip((1, 3))),
    "functions": lambda x: torch.exp(-x.abs()) + torch.log1p(x * x) + torch.tanh(x) + torch.sigmoid(x),
    "powers": lambda x: x**2 + x.abs() ** 1.5 + torch.sqrt(x * x + 1) + torch.rsqrt(x * x + 1),
    "activations": lambda x: functional.gelu(x) + functional.silu(x) + functional.hardswish(x),
    "more activations": lambda x: (
        functional.gelu(x, approximate="tanh") + functional.relu6(x) + functional.hardsigmoid(x)
    ),
    "clamp": lambda x: x.clamp(-0.5, 0.7) + x.clamp_min(0.1) + x.clamp(max=0.2),
    "reductions": lambda x: x.sum(1, keepdim=True) + x.mean((2, 3), keepdim=True) + x.amax(3, keepdim=True),
    "sums so far": lambda x: x.cumsum(1) + (x > 0).cumsum(-1),
    "a mean over the batch": lambda x: x - x.mean() + x.sum(0),
    "softmax": lambda x: torch.softmax(x, 2) + torch.log_softmax(x, 1),
    "transposes": lambda x: x.transpose(1, 3) + x.permute(0, 2, 3, 1).reshape(x.shape[0], 6, 6, 4),
    "slices": lambda x: x[:, 1:3, ::2, -3:] + x[:, :2, 1::2, :3],
    "select": lambda x: x[:, 1] + x[:, -1] + x.select(3, 2)[:, :1].transpose(1, 2),
    "indices": lambda x: x[:, PLACES] + x.index_select(1, PLACES),
    "gather": lambda x: x.gather(3, (x > 0).long()),
    "expand": lambda x: x.mean((1, 2, 3), keepdim=True).expand(-1, 2, 3, 4) + torch.ones(2, 3, 4),
    "expand to the batch": lambda x: x[:, :2] + torch.ones(1, 2, 6, 6).expand(x.shape[0], -1, -1, -1),
    "new tensors": lambda x: x + x.new_zeros(x.shape) + torch.ones_like(x) + torch.full((6,), 2.0),
    "ranges": lambda x: x * torch.arange(6) + torch.arange(1.0, 13.0, 2.0),
    "pad and flip": lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5).flip(3),
    "concatenate and split": lambda x: torch.cat([x.split([1, 3], 1)[1], x.chunk(2, 1)[0]], 1),
    "stack and unbind": lambda x: torch.stack([*x.unbind(1)[:2], x[:, 3]], 2),
    "products": lambda x: (x @ x.transpose(2, 3)).flatten(1) + (x.flatten(1) @ torch.ones(144, 144)),
    "convolution": lambda x: functional.conv2d(x, WEIGHT, torch.arange(8.0), stride=2, padding=1),
    "depthwise": lambda x: functional.conv2d(x, DEPTHWISE, padding=2, dilation=2, groups=4),
    "transposed convolution": lambda x: functional.conv_transpose2d(x, UP, None, 2, 0, 1),
    "layer norm": lambda x: functional.layer_norm(functional.layer_norm(x, (6, 6)), (6,), torch.arange(6.0)),
    "group norm": lambda x: functional.group_norm(x, 2, torch.arange(4.0), torch.ones(4)),
    "batch norm": lambda x: functional.batch_norm(x, torch.zeros(4), torch.full((4,), 2.0)),
    "pools": lambda x: functional.max_pool2d(x, 3, 2, 1) + functional.avg_pool2d(x, 2),
    "max pool with indices": lambda x: functional.max_pool2d(x, 2, return_indices=True)[1],
    "adaptive pool": lambda x: functional.adaptive_avg_pool2d(x, 1) + x.sum((2, 3), keepdim=True),
    "embedding": lambda x: functional.embedding((x > 0).long(), torch.arange(6.0).reshape(2, 3)),
    "in place": lambda x: x.clone().add_(1).mul_(2),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_operator_is_written_and_computes_what_torch_computes(name, monkeypatch):
    monkeypatch.delattr(torch_graph, "exported")  # what is not known would go there
    subject = subject_of(WRITTEN[name])
    graph = next(candidates(subject, FORWARD))
    assert check_parity(subject, graph) < 1e-4


@pytest.mark.slow
def test_what_is_not_known_is_written_by_torchs_exporter_and_that_is_said(caplog):
    caplog.set_level(logging.INFO)
    subject = subject_of(torch.frac)
    graph = next(candidates(subject, FORWARD))
    assert check_parity(subject, graph) < 1e-4
    assert "operator aten.trunc.default" in caplog.text


def test_equal_constants_are_kept_once_and_nothing_is_said_twice():
    subject = subject_of(lambda x: (x + 0.125) * 0.125 - 0.125)
    graph = onnx.load_from_string(next(candidates(subject, FORWARD)).onnx).graph
    values = [onnx.numpy_helper.to_array(c) for c in graph.initializer if not c.external_data]
    assert [float(value) for value in values if value.shape == ()].count(0.125) == 1


def test_the_batch_is_symbolic_and_everything_else_is_not():
    subject = subject_of(lambda x: x)
    graph = onnx.load_from_string(next(candidates(subject, FORWARD)).onnx).graph
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input}
    assert dims["x"] == ["batch", 4, 6, 6]
    outputs = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.output
    }
    assert outputs == {"logits": ["batch", 3], "features": ["batch", 144]}


def test_a_linear_layer_on_tokens_is_one_product_and_one_sum():
    """torch folds tokens into rows, multiplies by alpha and beta of 1, and unfolds them again."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 5)
    subject = subject_of(lambda x: functional.linear(x, linear.weight.detach(), linear.bias.detach()))
    graph = onnx.load_from_string(next(candidates(subject, FORWARD)).onnx).graph
    operators = [node.op_type for node in graph.node if node.op_type != "Identity"]
    assert operators == ["Transpose", "MatMul", "Add", "Reshape", "Transpose", "MatMul", "Add"]


class Called(nn.Module):
    """A parameter of a name that values of graphs are given, too."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.register_parameter(name, nn.Parameter(torch.ones(8)))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(x * getattr(self, self.name)) + getattr(self, self.name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t1", "t2", "v1", "v5", "v9", "batch", "weights"])
def test_parameters_may_be_called_as_values_of_graphs_are(name):
    subject = FunctionalModule(Called(name).eval(), "head", torch.randn(TRACED_BATCH, 8))
    names = (name, "head.weight", "head.bias")
    for graph in candidates(subject, WantedGraphs({"all": names}, ("train",), (), False)):
        assert check_parity(subject, graph) < 1e-4


@pytest.mark.parametrize("name", ["x", "y", "logits", "features", "losses", "loss"])
def test_parameters_that_are_called_as_inputs_or_outputs_are_refused(name):
    subject = FunctionalModule(Called(name).eval(), "head", torch.randn(TRACED_BATCH, 8))
    with pytest.raises(ExportError, match=f"tensor {name} has the name of an input or output of the graph"):
        list(candidates(subject, WantedGraphs({"all": (name,)}, ("train",), (), False)))
