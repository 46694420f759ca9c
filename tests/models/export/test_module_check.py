"""Modules that a bundle cannot have are refused with what to change; layers that are odd but sound work."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export

nn, functional = torch.nn, torch.nn.functional
SPEC = ExportSpec("it", InputSpec((8,)), ("a", "b", "c"), sets={"all": {}})


class Of(nn.Module):
    """A hidden layer, a head, and a function of both and the input."""

    def __init__(self, function, prepare=lambda net: None) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.function = function
        prepare(self)

    def forward(self, x):
        return self.function(self, x)


def usual(net, x):
    return net.head(torch.relu(net.fc(x)))


def after(function):
    return Of(lambda net, x: function(usual(net, x)))


def changed(**attributes):
    def prepare(net):
        for name, value in attributes.items():
            setattr(net, name, value(net))

    return Of(usual, prepare)


class Scaled(nn.Linear):
    """A head that does more than its weight and bias say."""

    def forward(self, x):
        return 3 * super().forward(x)


class Cosine(nn.Linear):
    """A head on its own weight made to length 1."""

    def forward(self, x):
        return functional.linear(x, functional.normalize(self.weight), self.bias)


def hooked(inputs, outputs):
    head = nn.Linear(inputs, outputs)
    head.register_forward_hook(lambda layer, features, logits: 2 * logits)
    return head


def with_head(kind):
    return Of(usual, lambda net: setattr(net, "head", kind(8, 3)))


def halving(net):
    net.fc.weight.register_hook(lambda gradient: gradient / 2)


def layers(*parts):
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), *parts)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            after(lambda z: z.log_softmax(1)),
            "returns log_softmax of what its head head gives: return the logits",
        ),
        (after(lambda z: z.softmax(1)), "returns softmax of what its head head gives: return the logits"),
        (after(torch.sigmoid), "returns sigmoid of what its head head gives: return the logits"),
        (after(functional.logsigmoid), "returns log_sigmoid of what"),
        (layers(nn.Linear(8, 3), nn.LogSoftmax(1)), r"the logits, without its last layer 3 \(LogSoftmax\)"),
        (layers(nn.Linear(8, 3), nn.Sigmoid()), r"the logits, without its last layer 3 \(Sigmoid\)"),
        (after(lambda z: z / 2), "returns 0.5 times what its head head gives: return the logits, and scale"),
        (
            after(lambda z: z.argmax(1)),
            r"returns \(4,\), such as an argmax, expected the logits of head head",
        ),
        (after(lambda z: (z, z)), "returns a tuple, expected the logits alone"),
        (after(lambda z: {"logits": z}), "returns a dict, expected the logits alone"),
        (Of(lambda net, x: None), "returns a NoneType, expected the logits alone"),
        (
            Of(lambda net, x: functional.linear(functional.normalize(net.fc(x)), net.head.weight)),
            r"never calls its head head: .* \(--head fc\), or return head\(features\); .* cosine head",
        ),
        (changed(spare=lambda net: [nn.Linear(8, 8)]), "attribute spare holds weights .* in nn.ModuleList"),
        (changed(spare=lambda net: {"a": nn.Linear(8, 8)}), "attribute spare holds weights .* nn.ModuleDict"),
        (
            changed(spare=lambda net: torch.ones(8, requires_grad=True)),
            "attribute spare holds weights .* make it an nn.Parameter",
        ),
        (
            changed(spare=lambda net: nn.Parameter(net.fc.weight.data[:4])),
            "fc.weight shares memory with spare, and a bundle trains them apart: clone",
        ),
        (
            changed(spare=lambda net: nn.Parameter(torch.ones(2, dtype=torch.complex64))),
            "spare is torch.comp",
        ),
        (layers(nn.Linear(8, 3)).double(), r"0.weight is torch.float64; .*: give module.float\(\)"),
        (layers(nn.Linear(8, 3)).half(), r"0.weight is torch.float16; .*: give module.float\(\)"),
        (layers(nn.Linear(8, 3)).to("meta"), "0.weight is on device meta, expected cpu: build it with real"),
        (
            nn.DataParallel(layers(nn.Linear(8, 3))),
            "wrapped in DataParallel: give what is inside, its .* module",
        ),
        (torch.jit.script(layers(nn.Linear(8, 3))), "give the nn.Module that it was made from"),
        (
            layers(nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))),
            "the weight of head 2 is computed from other tensors, as by weight_norm: the head must be a",
        ),
        (
            with_head(Scaled),
            "returns 3 times what its head head gives: return the logits, and scale",
        ),
        (
            with_head(Cosine),
            "something else than the logits of its head head: .* as in a cosine head",
        ),
        (with_head(hooked), "returns 2 times what its head head gives: return the logits, and scale"),
        (
            Of(usual, halving),
            "fc.weight has a hook on its gradient, which devices would train without",
        ),
        (nn.Sequential(nn.Conv1d(8, 3, 1)), "has no nn.Linear, which the head must be: end with one"),
        (Of(lambda net, x: 1 / 0), r"fails on \(4, 8\): division by zero \(test_module_check.py, line \d+\)"),
        (
            Of(lambda net, x: net.head(torch.sqrt(net.fc(x)))),
            "logits that are not finite for standard normal",
        ),
        pytest.param(
            Of(lambda net, x: net.head(net.fc(x).half().float())),
            "computes in torch.float16, expected float32",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_module_that_no_bundle_can_have_is_refused_with_what_to_change(module, message, tmp_path):
    with pytest.raises(ExportError, match=message) as caught:
        export(module, SPEC, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_head_that_shares_its_weight_with_an_embedding_is_refused_with_how_to_part_them(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids):
            return self.head(self.words(ids).mean(1))

    labels = tuple(map(str, range(20)))
    spec = ExportSpec("it", InputSpec((8,), dtype="int64", vocabulary=20), labels)
    with pytest.raises(
        ExportError, match=r"head head shares its weight with words.weight.*head.weight = nn.Par"
    ):
        export(Tied(), spec, tmp_path / "out")


def exported(module, tmp_path, shape=(8,)):
    """Exports it, compares its logits with torch's, and gives the bundle."""
    spec = ExportSpec("it", InputSpec(shape), ("a", "b", "c"), sets={"all": {}})
    bundle = export(module, spec, tmp_path / "out")
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(OnnxModel(bundle).logits(x), expected, atol=1e-4)
    return bundle


def test_a_layer_with_two_names_is_stored_and_trained_once(tmp_path):
    def twice(net):
        net.again = net.fc

    module = Of(lambda net, x: net.head(net.again(torch.relu(net.fc(x)))), twice)
    bundle = exported(module, tmp_path)
    names = {parameter.name for parameter in bundle.manifest.parameters}
    assert names == {"fc.weight", "fc.bias", "head.weight", "head.bias"}
    x, y = np.ones((2, 8), np.float32), np.array([0, 1])
    trainer = OnnxModel(bundle).trainer("all")
    trainer.loss_and_grads(x, y)
    functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    np.testing.assert_allclose(trainer.grads.views["fc.weight"], module.fc.weight.grad.numpy(), atol=1e-5)


def test_a_linear_layer_alone_is_a_network(tmp_path):
    bundle = exported(nn.Linear(8, 3), tmp_path)
    assert {p.name for p in bundle.manifest.parameters} == {"0.weight", "0.bias"}


def test_what_a_hook_puts_in_front_of_the_head_is_a_part_of_the_features(tmp_path):
    def shift(net):
        net.head.register_forward_pre_hook(lambda layer, inputs: (inputs[0] + 1,))

    exported(Of(usual, shift), tmp_path)


class Encoder(nn.Module):
    """A transformer whose attention has a mask over places."""

    def __init__(self, **masks) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(4, 3)
        self.masks = masks

    def forward(self, x):
        masks = {name: mask(x) for name, mask in self.masks.items()}
        return self.head(self.body(x, **masks).mean(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "masks",
    [
        {"mask": lambda x: nn.Transformer.generate_square_subsequent_mask(x.shape[1])},
        {"src_key_padding_mask": lambda x: x.abs().sum(-1) == 0},
    ],
)
def test_a_transformer_may_have_masks(masks, tmp_path):
    exported(Encoder(**masks), tmp_path, (6, 4))


def test_lazy_layers_get_their_shapes_by_a_first_pass(tmp_path):
    bundle = exported(nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(3)), tmp_path)
    assert {p.name: p.shape for p in bundle.manifest.parameters}["0.weight"] == (5, 8)


def maps(*parts, width):
    return nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), *parts, nn.Flatten(), nn.Linear(width, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (layers(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3)), (8,)),
        (layers(nn.utils.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3)), (8,)),
        (layers(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3)), (8,)),
        (Of(lambda net, x: net.head(functional.normalize(net.fc(x)))), (8,)),
        (layers(nn.GroupNorm(2, 8), nn.Linear(8, 3)), (8,)),
        (layers(nn.GLU(), nn.Linear(4, 3)), (8,)),
        (layers(nn.PReLU(), nn.Linear(8, 3)), (8,)),
        (maps(nn.InstanceNorm1d(4), width=32), (2, 8)),
        (maps(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), width=32), (2, 8)),
        (maps(nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"), width=32), (2, 8)),
        (maps(nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect"), width=32), (2, 8)),
        (maps(nn.Conv1d(4, 4, 3, dilation=2, groups=2), width=16), (2, 8)),
        (maps(nn.ConvTranspose1d(4, 4, 3, stride=2), nn.AdaptiveAvgPool1d(1), width=4), (2, 8)),
        (maps(nn.LocalResponseNorm(2), width=32), (2, 8)),
        (maps(nn.AdaptiveAvgPool1d(3), width=12), (2, 8)),
        (Of(lambda net, x: net.head(torch.cat([net.fc(x)[:, ::2], net.fc(x)[:, 1::2]], 1))), (8,)),
        (Of(lambda net, x: net.head((net.fc(x) - x) / x.std(1, keepdim=True))), (8,)),
    ],
)
def test_layers_that_were_refused_are_what_torch_computes(module, shape, tmp_path):
    exported(module, tmp_path, shape)


@pytest.mark.slow
def test_the_layer_that_has_no_gradient_is_named(tmp_path):
    module = nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    spec = ExportSpec("it", InputSpec((1, 4, 4, 4)), ("a", "b", "c"))
    with pytest.raises(ExportError, match=r"it is layer 0 \(Conv3d\): replace it, or train the head alone"):
        export(module, spec, tmp_path / "out")
    spec = ExportSpec("it", InputSpec((1, 4, 4, 4)), ("a", "b", "c"), sets={"head": {}})
    assert export(module, spec, tmp_path / "head").manifest.sets.keys() == {"head"}
