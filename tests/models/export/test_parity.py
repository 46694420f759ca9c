"""Each way in which an export has silently gone wrong is caught, named, and leaves nothing behind."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.engines.blocked import layers
from device_runtime.models.engines.blocked.layers import block_size
from device_runtime.models.errors import ExportError, ParityError
from device_runtime.models.export import candidates as torch_candidates
from device_runtime.models.export import graph as torch_graph
from device_runtime.models.export import parity as torch_parity
from device_runtime.models.export.candidates import WantedGraphs, candidates
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.export.parity import BATCHES, MOST_NUDGES, SEEDS, GraphCandidate, check_parity
from device_runtime.models.export.trace import TRACED_BATCH
from device_runtime.models.torch_modules.functional_module import FunctionalModule

nn = torch.nn
SPEC = ExportSpec("twins", InputSpec((8,)), ("a", "b", "c"))


class Twins(nn.Module):
    """Two normalisations whose weights start out equal."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.two = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.two(torch.tanh(self.norm(x))))


@pytest.fixture
def module() -> Twins:
    torch.manual_seed(1)
    return Twins()


Change = Callable[["onnx.GraphProto"], None]


@pytest.fixture
def spoilt(monkeypatch) -> Callable[[Change], None]:
    """Makes the exporter hand out graphs that a function has changed."""
    right = torch_graph.subgraph

    def spoil(change: Change) -> None:
        def wrong(*args):
            model = onnx.load_from_string(right(*args))
            change(model.graph)
            return model.SerializeToString()

        for module in (torch_graph, torch_candidates):
            monkeypatch.setattr(module, "subgraph", wrong)

    return spoil


def refusal(module, tmp_path: Path) -> str:
    """The one line with which the export is refused, nothing having been written."""
    with pytest.raises(ParityError) as caught:
        export(module, SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def gradients(subject: FunctionalModule) -> GraphCandidate:
    """The graph train.all, as `export` makes it."""
    names = tuple(name for name, _ in subject.module.named_parameters())
    *_, last = candidates(subject, WantedGraphs({"all": names}, ("train",), (), False))
    return last


def refusal_of_gradients(module) -> str:
    """The one line with which the gate refuses the graph train.all."""
    subject = FunctionalModule(module.eval(), "head", torch.randn(TRACED_BATCH, 8))
    with pytest.raises(ParityError) as caught:
        check_parity(subject, gradients(subject))
    return str(caught.value)


def read_instead(graph, name: str, other: str) -> None:
    for node in graph.node:
        node.input[:] = [other if operand == name else operand for operand in node.input]


def is_trained(graph, name: str) -> bool:
    return name in {value.name for value in graph.input}


def test_weights_merged_because_they_are_equal_are_caught_by_name(module, spoilt, tmp_path):
    """Right for the module's own weights (seed 0), wrong as soon as training has parted them."""
    spoilt(lambda graph: is_trained(graph, "two.weight") and read_instead(graph, "two.weight", "norm.weight"))
    message = refusal(module, tmp_path)
    assert message.startswith("graph loss.all, batch 1, seed 1: losses differs from torch by")


def test_weights_folded_into_the_graph_are_caught_by_name(module, spoilt):
    """The graph still takes the parameter, and reads what it was when it was traced."""

    def fold(graph) -> None:
        if is_trained(graph, "norm.bias"):
            graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(8, np.float32), "folded"))
            read_instead(graph, "norm.bias", "folded")

    spoilt(fold)
    message = refusal_of_gradients(module)
    assert message.startswith("graph train.all, batch 1, seed 1: grad.")


def test_weights_that_a_graph_no_longer_takes_are_caught_by_name(module, spoilt):
    def drop(graph) -> None:
        for value in [value for value in graph.input if value.name == "norm.bias"]:
            graph.input.remove(value)
            graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(8, np.float32), "norm.bias"))

    spoilt(drop)
    message = refusal_of_gradients(module)
    assert "graph train.all" in message
    assert "norm.bias" in message


def test_the_worst_of_several_wrong_gradients_is_named(module, spoilt):
    """Both gradients are a few per cent off, that of the head's bias is doubled."""

    def scale(graph) -> None:
        for name, by in (("grad.one.bias", 1.01), ("grad.head.bias", 2.0)):
            for node in graph.node if name in {value.name for value in graph.output} else ():
                node.output[:] = [f"right.{output}" if output == name else output for output in node.output]
            if name in {value.name for value in graph.output}:
                graph.initializer.append(onnx.numpy_helper.from_array(np.float32(by), f"by.{name}"))
                graph.node.append(onnx.helper.make_node("Mul", [f"right.{name}", f"by.{name}"], [name]))

    spoilt(scale)
    assert "grad.head.bias differs" in refusal_of_gradients(module)


@pytest.fixture
def doubled(module, spoilt) -> FunctionalModule:
    """Its graphs give the gradient of the head's bias twice as large."""

    def double(graph) -> None:
        for node in graph.node:
            node.output[:] = ["right" if name == "grad.head.bias" else name for name in node.output]
        graph.node.append(onnx.helper.make_node("Add", ["right", "right"], ["grad.head.bias"]))

    spoilt(lambda graph: double(graph) if "grad.head.bias" in {v.name for v in graph.output} else None)
    return FunctionalModule(module.eval(), "head", torch.randn(TRACED_BATCH, 8))


def turned_by(monkeypatch, turns: Callable[[int], bool]) -> None:
    """In torch, too, a nudge of that number doubles the gradient, as if a ReLU let it through or not."""
    right = torch_parity._torch_outputs

    def shaken(*arguments):
        yield right(*arguments)
        for number in range(1, MOST_NUDGES + 1):
            outputs = right(*arguments)
            yield {**outputs, "grad.head.bias": outputs["grad.head.bias"] * (1 + turns(number))}

    monkeypatch.setattr(torch_parity, "_shaken", shaken)


def test_what_a_rounding_turns_in_torch_too_is_accepted(doubled, monkeypatch):
    """Six nudges show nothing, then each does: after two of eight, four times the mean is the difference.

    What is given back is the difference itself, nearly the whole gradient, and no share of what is accepted.
    """
    turned_by(monkeypatch, lambda number: number > 6)
    assert 0.9 < check_parity(doubled, gradients(doubled)) <= 1


def test_what_torch_gives_another_time_widens_no_tolerance(doubled, monkeypatch):
    """Torch's second run on equal inputs is as far off as the graph: noise, and not the kink of a ReLU."""
    right, runs = torch_parity._torch_outputs, []

    def noisy(*arguments):
        runs.append(arguments)
        outputs = right(*arguments)
        return {**outputs, "grad.head.bias": outputs["grad.head.bias"] * (1 + (len(runs) > 1))}

    monkeypatch.setattr(torch_parity, "_torch_outputs", noisy)
    with pytest.raises(
        ParityError, match=r"torch gives grad\.head\.bias that differ between two runs on equal"
    ):
        check_parity(doubled, gradients(doubled))


def test_what_a_rounding_turns_once_in_many_times_is_refused(doubled, monkeypatch):
    turned_by(monkeypatch, lambda number: number == MOST_NUDGES)
    with pytest.raises(ParityError, match=r"grad\.head\.bias differs"):
        check_parity(doubled, gradients(doubled))


def test_outputs_that_are_all_zero_are_compared():
    subject = FunctionalModule(
        nn.Sequential(nn.Threshold(9, 0), nn.Linear(8, 3)), "1", torch.randn(TRACED_BATCH, 8)
    )
    forward = next(candidates(subject, WantedGraphs({}, (), (), False)))
    assert check_parity(subject, forward) < 1e-4


class Counting(Twins):
    """Takes the number of samples as a Python number, which tracing makes a constant."""

    def forward(self, x):
        return self.head(self.two(self.norm(x)) * int(x.shape[0]))


class Reshaping(Twins):
    """Says the traced batch itself."""

    def forward(self, x):
        return self.head(self.two(self.norm(x)).reshape(TRACED_BATCH, 8))


def test_a_batch_frozen_to_the_traced_size_is_caught_and_explained(tmp_path):
    with pytest.raises(
        ExportError, match="forward cannot be exported: the number of samples becomes a constant"
    ):
        export(Counting(), SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_network_that_takes_one_batch_size_alone_is_refused_before_it_is_traced(tmp_path):
    with pytest.raises(ExportError, match=r"fails on 3 samples: shape '\[4, 8\]' is invalid .* batch size"):
        export(Reshaping(), SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Branching(Twins):
    """Right for every batch but the last that is tried."""

    def forward(self, x):
        return self.head(self.two(self.norm(x)) * (2 if x.shape[0] == BATCHES[-1] else 1))


def test_a_branch_on_the_batch_size_is_caught_where_it_is_taken(tmp_path):
    assert refusal(Branching(), tmp_path).startswith(f"graph forward, batch {BATCHES[-1]}, seed 0: ")


class BatchStatistics(nn.Module):
    """BatchNorm that goes on using the statistics of the batch, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, track_running_stats=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.norm(x.unsqueeze(2) * torch.arange(1.0, 5.0)).mean(2))


@pytest.mark.slow
def test_batch_norm_with_the_statistics_of_the_batch_is_exported_as_torch_computes_it():
    subject = FunctionalModule(BatchStatistics().eval(), "head", torch.randn(TRACED_BATCH, 8))
    assert 0 <= check_parity(subject, gradients(subject)) < 1e-4


def test_batch_norm_with_a_wrong_variance_is_caught(spoilt, tmp_path):
    """Right as long as weight and variance are both all 1."""
    norm = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()

    def swap(graph) -> None:
        other = {"0.running_var": "0.weight", "0.weight": "0.running_var"}
        for node in graph.node:
            node.input[:] = [other.get(name, name) for name in node.input]

    spoilt(swap)
    assert refusal(norm, tmp_path).startswith("graph forward, batch 1, seed 1: ")


def test_a_graph_that_gives_nan_is_caught(module, spoilt):
    def poison(graph) -> None:
        if is_trained(graph, "head.bias"):
            bad = np.full(3, np.nan, np.float32)
            graph.initializer.append(onnx.numpy_helper.from_array(bad, "bad"))
            read_instead(graph, "head.bias", "bad")

    spoilt(poison)
    assert "differs from torch by nan" in refusal_of_gradients(module)


def test_the_gate_tries_other_batches_than_the_traced_one_and_weights_that_differ(module):
    assert TRACED_BATCH not in BATCHES
    assert 1 in BATCHES
    assert len(BATCHES) >= 2
    assert len(SEEDS) >= 5
    subject = FunctionalModule(module.eval(), "head", torch.randn(TRACED_BATCH, 8))
    forward = next(candidates(subject, WantedGraphs({}, (), (), False)))
    assert 0 <= check_parity(subject, forward) < 1e-5


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16 * 16, 3)
    return nn.Sequential(*layers)


CONVOLUTIONAL = ExportSpec("maps", InputSpec((3, 8, 8)), ("a", "b", "c"), sets={"all": {}})


@pytest.mark.skipif(not block_size(), reason="this ONNX Runtime has no blocked layout")
def test_a_graph_that_is_wrong_in_blocks_is_exported_without_descriptions(tmp_path, caplog, monkeypatch):
    right = export(convolutional(), CONVOLUTIONAL, tmp_path / "right")
    assert b'"layer"' in right.graph("train.all")
    monkeypatch.setitem(
        layers.LAYERS, ("threshold_backward", 0), lambda on, described: on.blocked(described.inputs[0])
    )
    wrong = export(convolutional(), CONVOLUTIONAL, tmp_path / "wrong")
    assert b'"layer"' not in wrong.graph("train.all")
    assert "slower than they could be: graph train.all in the blocked layout, batch 5" in caplog.text
