"""A narrower network as the leading part of a wider one: by hand, then on networks of this package."""

import numpy as np
import pytest

from device_runtime.models.bundles.inputs import File, InputSpec
from device_runtime.models.bundles.manifest import Head, Manifest, Parameter
from device_runtime.models.bundles.weights import Slices
from device_runtime.models.errors import TensorError

LABELS = ("no", "yes")
INPUT = InputSpec((3,))


def manifest(name, shapes, features=None, input_=INPUT, labels=LABELS):
    """Of a network with these tensors, the head last."""
    parameters = tuple(Parameter(key, shape, "float32", "low", ("all",)) for key, shape in shapes.items())
    *_, last = shapes
    width = shapes[last][1]
    return Manifest(
        name, input_, labels, parameters, features or {}, Head(last, None, width), {"all": {}}, {},
        File("w", "", 0), "by hand",
    )  # fmt: skip


WIDE = {"hidden.weight": (4, 3), "hidden.bias": (4,), "head.weight": (2, 4)}
NARROW = {"hidden.weight": (2, 3), "hidden.bias": (2,), "head.weight": (2, 2)}


def test_a_member_has_the_leading_rows_and_columns_and_all_classes():
    weights = {
        "hidden.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
        "hidden.bias": np.float32([10, 11, 12, 13]),
        "head.weight": np.float32([[1, 2, 3, 4], [5, 6, 7, 8]]),
    }
    cut = Slices.of(manifest("wide", WIDE), manifest("narrow", NARROW)).cut(weights)
    assert {name: value.tolist() for name, value in cut.items()} == {
        "hidden.weight": [[0, 1, 2], [3, 4, 5]],
        "hidden.bias": [10, 11],
        "head.weight": [[1, 2], [5, 6]],
    }
    cut["hidden.bias"][...] = 0
    assert weights["hidden.bias"][0] == 10
    assert all(value.flags.c_contiguous for value in cut.values())


def refusal(wide, narrow):
    with pytest.raises(TensorError) as caught:
        Slices.of(wide, narrow)
    return str(caught.value)


def test_what_does_not_nest_is_refused_by_name():
    wide = manifest("wide", WIDE)
    assert refusal(wide, manifest("deep", {"more": (2,), **NARROW})) == (
        "deep is not a narrower wide: only it has more"
    )
    less = {name: shape for name, shape in NARROW.items() if name != "hidden.bias"}
    assert "only the main model has hidden.bias" in refusal(wide, manifest("less", less))
    many = {f"extra{index:02}": (2,) for index in range(9)}
    refused = refusal(wide, manifest("many", {**many, **NARROW}))
    assert refused.endswith("only it has extra00, extra01, extra02 and 6 more")
    wider = manifest("wider", {**NARROW, "hidden.bias": (5,)})
    assert "hidden.bias is (5,), which is no part of (4,)" in refusal(wide, wider)
    other = manifest("other", {**NARROW, "hidden.weight": (2, 3, 1)})
    assert "hidden.weight is (2, 3, 1), which is no part of (4, 3)" in refusal(wide, other)


def test_other_inputs_and_other_labels_are_refused():
    wide = manifest("wide", WIDE)
    scaled = manifest("scaled", NARROW, input_=InputSpec((3,), scale=0.5))
    assert "it takes float32 (3,) (scale 0.5" in refusal(wide, scaled)
    assert "its 2 labels are not the other's 2" in refusal(wide, manifest("m", NARROW, labels=("yes", "no")))


def test_channels_that_are_flattened_stay_leading_ones_in_as_many_places_only():
    """Channel by channel: of 8 channels in 2x2 places, the first 4 channels are the first 16 values."""

    def net(channels, takes):
        return {"conv.weight": (channels, 3, 3, 3), "dense.weight": (5, takes), "head.weight": (2, 5)}

    wide = manifest("wide", net(8, 32))
    assert Slices.of(wide, manifest("half", net(4, 16))).shapes["dense.weight"] == (5, 16)
    assert "dense.weight takes 12 values of 4 channels, not 4 places of each" in refusal(
        wide, manifest("m", net(4, 12))
    )


def test_as_many_positions_as_a_divisor_of_the_width_are_no_channels():
    def net(width):
        shapes = {"words.weight": (50, width), "positions.weight": (4, width), "q.weight": (width, width)}
        return manifest("m", {**shapes, "head.weight": (2, width)})

    assert Slices.of(net(8), net(4)).shapes["q.weight"] == (4, 4)


def test_tokens_that_are_flattened_are_refused():
    def net(width):
        shapes = {"embed.weight": (width, 3), "dense.weight": (2, 6 * width)}
        return manifest(f"w{width}", shapes, {"up": (6, width)})

    assert "dense.weight takes tokens one after the other" in refusal(net(4), net(2))


def test_layers_side_by_side_and_matrices_above_each_other_are_refused():
    def fire(width):
        shapes = {"one.weight": (width, 3, 1, 1), "three.weight": (width, 3, 3, 3)}
        return manifest("fire", {**shapes, "next.weight": (4, 2 * width, 1, 1), "head.weight": (2, 4)})

    assert "next.weight takes 8 channels, more than one layer's 4" in refusal(fire(4), fire(2))
    whole = {"one.weight": (4, 3, 1, 1), "three.weight": (2, 3, 3, 3), "next.weight": (4, 6, 1, 1)}
    assert (
        Slices.of(fire(4), manifest("fire", {**whole, "head.weight": (2, 4)})).shapes.items() >= whole.items()
    )
    for name in ("rnn.weight_hh_l0", "blocks.0.attn.qkv.weight", "attn.in_proj_weight"):
        nets = [manifest("m", {name: (3 * n, n), "head.weight": (2, n)}) for n in (4, 2)]
        assert f"{name} holds several matrices" in refusal(*nets)


def test_a_model_is_the_whole_of_itself():
    wide = manifest("wide", WIDE)
    assert dict(Slices.of(wide, wide).shapes) == WIDE


NETWORKS = [
    ("mlp", {"inputs": 12, "hidden": 8}, {"inputs": 12, "hidden": 4}, (3, 2, 2)),
    ("cnn", {"in_channels": 1, "size": 8}, {"in_channels": 1, "size": 8, "width": 0.25}, (1, 8, 8)),
    ("wrn", {"in_channels": 1}, {"in_channels": 1, "width": 0.5}, (1, 8, 8)),
    ("wrn", {"group_size": 4, "width": 0.5}, {"group_size": 4, "width": 0.25}, (3, 8, 8)),
    ("wrn", {"width": 3}, {"width": 1.5}, (3, 8, 8)),
    ("keywords", {"channels": 32}, {"channels": 16}, (1, 10, 10)),
    ("squeezenet", {"classes": 10}, {"classes": 10, "width": 0.5}, (3, 32, 32)),
]


@pytest.mark.parametrize("network, wide, narrow, shape", NETWORKS)
def test_a_part_computes_what_the_main_model_does_with_its_other_channels_unseen(
    network, wide, narrow, shape
):
    """Weights from the other channels into the leading ones set to 0: the leading ones are the member's."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.functional_module import stored_tensors

    torch.manual_seed(3)
    modules = [build(network, settings).eval() for settings in (wide, narrow)]
    nets = []
    for module in modules:
        shapes = {name: tuple(tensor.shape) for name, tensor in stored_tensors(module).items()}
        head = next(name for name in shapes if name in ("head.weight", "classifier.1.weight"))
        shapes[head] = shapes.pop(head)
        nets.append(manifest(network, shapes, input_=InputSpec(shape), labels=tuple(map(str, range(10)))))
    slices = Slices.of(*nets)
    weights = {name: tensor.numpy() for name, tensor in stored_tensors(modules[0]).items()}
    with torch.no_grad():
        for name, value in stored_tensors(modules[1]).items():
            value.copy_(torch.from_numpy(slices.cut(weights)[name]))
            if value.dim() > 1:
                stored_tensors(modules[0])[name][: len(value), value.shape[1] :] = 0
        x = torch.randn(4, *shape)
        torch.testing.assert_close(modules[0](x), modules[1](x), atol=1e-5, rtol=1e-5)


def test_networks_that_are_no_parts_say_which_tensor_is_at_fault():
    pytest.importorskip("torch")
    from device_runtime.models.networks import build
    from device_runtime.models.torch_modules.functional_module import stored_tensors

    def net(name, **settings):
        shapes = {key: tuple(tensor.shape) for key, tensor in stored_tensors(build(name, settings)).items()}
        shapes["head.weight"] = shapes.pop("head.weight")
        return manifest(name, shapes, labels=tuple(map(str, range(10))))

    assert "only the main model has group1.0.shortcut.weight" in refusal(net("wrn", width=2), net("wrn"))
    assert "qkv" in refusal(net("vit", dim=24, heads=3, image=32), net("vit", dim=16, heads=2, image=32))
    assert "weight_ih_l0 holds several" in refusal(
        net("lstm", hidden=8, classes=10), net("lstm", hidden=4, classes=10)
    )
