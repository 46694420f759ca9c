"""A network or loss that gives something else for equal inputs is refused, with what draws or changes."""

import os
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.targets import targets_of
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export

nn, functional = torch.nn, torch.nn.functional
SPEC = ExportSpec("it", InputSpec((8,)), ("a", "b", "c"), sets={"head": {}})
OUTSIDE = SimpleNamespace(calls=0)


class Of(nn.Module):
    """A network with this function between its input and its head."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        return self.head(self.function(self, x))


def counted(net, x):
    net.calls = getattr(net, "calls", 0) + 1
    return x * net.calls


def counted_outside(net, x):
    OUTSIDE.calls += 1
    return x + OUTSIDE.calls


def by_the_first(net, x):
    if not hasattr(net, "first"):
        net.first = x.detach().mean(0)
    return x - net.first


def moving(net, x):
    net.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
    return x - net.mean


def replacing(net, x):
    net.mean = 0.9 * net.mean + 0.1 * x.detach().mean(0)
    return x - net.mean


def seeded(net, x):
    torch.manual_seed(3)
    return functional.dropout(x, 0.5, training=True)


def left_out_at_times(net, x):
    return net.layer(x) if random.random() < 0.7 else x


class FromNumpy:
    """A generator that the module keeps."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, net, x):
        return x + torch.from_numpy(self.rng.normal(size=8).astype(np.float32))


DRAWN = (
    r"the network draws random numbers, and is no function of its input: {} \(.*test_determinism.py, line \d+"
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda net, x: functional.dropout(x, 0.5), DRAWN.format("torch.nn.functional.dropout")),
        (lambda net, x: functional.dropout1d(x), DRAWN.format("torch.nn.functional.dropout1d")),
        (
            lambda net, x: functional.alpha_dropout(x, 0.5, True),
            DRAWN.format("torch.nn.functional.alpha_d.*"),
        ),
        (lambda net, x: x + 1e-7 * torch.randn_like(x), DRAWN.format("torch.randn_like")),
        (lambda net, x: x + torch.rand(8), DRAWN.format("torch.rand")),
        (lambda net, x: x * torch.bernoulli(torch.full_like(x, 0.9)), DRAWN.format("torch.bernoulli")),
        (lambda net, x: x + torch.empty_like(x).normal_(), DRAWN.format("torch.Tensor.normal_")),
        (lambda net, x: x[:, torch.multinomial(torch.ones(8), 8)], DRAWN.format("torch.multinomial")),
        (lambda net, x: x[:, torch.randperm(8)], DRAWN.format("torch.randperm")),
        (lambda net, x: functional.rrelu(x, training=True), DRAWN.format("torch.nn.functional.rrelu")),
        (lambda net, x: functional.gumbel_softmax(x), DRAWN.format("torch.nn.functional.gumbel_softmax")),
        (lambda net, x: x * (torch.rand(()) > 1e-6), DRAWN.format("torch.rand")),
        (seeded, DRAWN.format("torch.nn.functional.dropout")),
        (
            lambda net, x: x + torch.randn(8, generator=torch.Generator().manual_seed(3)),
            DRAWN.format("torch.randn"),
        ),
        (left_out_at_times, r"network depends on random.random \(test_determinism.py, line \d+\), not on"),
        (
            lambda net, x: x + np.random.rand(),
            "the network depends on numpy.random, not on input and weights",
        ),
        (FromNumpy(), "the network is no function of its input and weights: its attribute function changes"),
        (lambda net, x: x + time.time() % 1, r"depends on time.time \(test_determinism.py, line \d+\)"),
        (lambda net, x: x + os.urandom(1)[0], r"depends on os.urandom \(test_determinism.py, line \d+\)"),
        (counted, "its attribute calls changes in each call, and equal inputs give"),
        (
            counted_outside,
            "it keeps something between calls, such as a global variable, and equal inputs give",
        ),
        (by_the_first, "it keeps its attribute first from its first call, and equal inputs give"),
        (moving, "changes its tensor mean, in eval mode too, which no graph can do: change it only where"),
        (
            replacing,
            "something else in place of its tensor mean in each call, in eval mode too, .*: change it only",
        ),
        (lambda net, x: x.mul_(2), "changes its input in place, which no graph can do: write x = x \\* 2"),
        (lambda net, x: x - x[:1], "the network depends on a sample's place in its batch"),
    ],
)
def test_a_network_that_is_no_function_of_its_input_is_refused_by_what_it_does(function, message, tmp_path):
    with pytest.raises(ExportError, match=message) as caught:
        export(Of(function), SPEC, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_layer_that_draws_is_named(tmp_path):
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.FractionalMaxPool2d(2, 4), nn.Flatten())
    spec = ExportSpec("it", InputSpec((1, 8, 8)), ("a", "b", "c"), sets={"head": {}})
    with pytest.raises(ExportError, match=r"fractional_max_pool2d \(layer 0.1 \(FractionalMaxPool2d\)\)"):
        export(nn.Sequential(body, nn.Linear(64, 3)), spec, tmp_path / "out")


def noisy(outputs, targets):
    return ((outputs + torch.randn_like(outputs) - targets) ** 2).mean(1)


def growing(outputs, targets):
    OUTSIDE.calls += 1
    return OUTSIDE.calls * ((outputs - targets) ** 2).mean(1)


def by_the_largest(outputs, targets):
    return ((outputs - targets) ** 2).mean(1) / outputs.abs().max().item()


def of_the_batch(outputs, targets):
    return ((outputs - outputs.mean(0) - targets) ** 2).mean(1)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (noisy, r"the loss draws random numbers, .*: torch.randn_like \(test_determinism.py, line"),
        (growing, "the loss is no function of its input and weights: it keeps something between calls"),
        (by_the_largest, "the loss of a sample depends on which others are in its batch: return the"),
        (
            of_the_batch,
            "the loss of a sample depends on which others are in its batch: return the loss of each",
        ),
    ],
)
def test_a_loss_that_is_no_function_of_its_sample_is_refused(loss, message, tmp_path):
    target = targets_of(loss.__name__, ("a", "b", "c"), own=True)
    spec = ExportSpec("it", InputSpec((8,)), ("a", "b", "c"), sets={"head": {}}, loss=target, own_loss=loss)
    with pytest.raises(ExportError, match=message):
        export(Of(lambda net, x: net.layer(x)), spec, tmp_path / "out")


def unused(net, x):
    """As transformers' networks do: a number is drawn in eval mode, too, and then not looked at."""
    drawn = random.uniform(0, 1), float(np.random.rand())
    return net.layer(x) if not net.training or min(drawn) > 0.1 else x


def test_numbers_that_are_drawn_and_not_used_are_no_reason_to_refuse(tmp_path):
    random.seed(1)
    before = random.getstate()
    bundle = export(Of(unused), SPEC, tmp_path / "out")
    assert bundle.manifest.name == "it"
    assert random.getstate() != before  # by tracing alone: the proof puts the state back


def test_a_cache_that_changes_no_result_is_no_reason_to_refuse(tmp_path):
    def cached(net, x):
        if not hasattr(net, "places"):
            net.places = torch.arange(8.0)
        return x + net.places

    assert export(Of(cached), SPEC, tmp_path / "out").manifest.name == "it"


def test_a_buffer_that_each_call_makes_anew_from_its_input_is_no_reason_to_refuse(tmp_path):
    def masked(net, x):
        net.mean = torch.arange(8.0)
        return x + net.mean

    assert export(Of(masked), SPEC, tmp_path / "out").manifest.name == "it"


def test_an_attribute_that_calls_change_without_an_effect_so_far_is_said(tmp_path, caplog):
    def counting(net, x):
        net.calls = getattr(net, "calls", 0) + 1
        return x if net.calls < 1000 else 2 * x

    export(Of(counting), SPEC, tmp_path / "out")
    assert "calls change its attribute calls, without an effect in the first few" in caplog.text


def test_batch_norms_may_move_their_statistics_in_training(tmp_path):
    network = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    spec = ExportSpec("it", InputSpec((8,)), ("a", "b", "c"), sets={"all": {}}, batchnorm="training")
    assert export(network, spec, tmp_path / "out").manifest.graphs["train.all"].statistics


def test_a_result_that_depends_on_the_other_samples_is_said(tmp_path, caplog):
    export(Of(lambda net, x: x - x.mean(0)), SPEC, tmp_path / "out")
    assert "depends on which others are in its batch; devices have other batches" in caplog.text
