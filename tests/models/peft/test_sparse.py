"""Which places a mask has, and that a layer computes with the values at them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models import peft as torch_peft
from device_runtime.models.peft.methods import indices

nn = torch.nn


@pytest.mark.parametrize(
    ("size", "density", "count"), [(100, 0.1, 10), (55, 0.1, 6), (4, 0.1, 0), (7, 1.0, 7)]
)
def test_mask_has_the_rounded_number_of_distinct_places_in_order(size, density, count):
    """55 * 0.1 is a little more than 5.5."""
    places = indices(size, density, (3, 1))
    assert places.dtype == np.int64 and len(places) == count
    assert (np.diff(places) > 0).all()
    assert all(0 <= place < size for place in places)


def test_mask_is_the_same_on_every_platform():
    """Philox's words are a standard; these places were taken with numpy 2.4 on x86-64."""
    assert indices(50, 0.1, (7, 2)).tolist() == [6, 26, 32, 41, 47]


def test_every_place_is_as_likely():
    """Of 2,000 masks of 3 of 10 places each place is in 600, give or take 4 deviations of 20.5."""
    counts = np.zeros(10)
    for key in range(2000):
        counts[indices(10, 0.3, (key, 0))] += 1
    assert counts.sum() == 6000
    assert np.abs(counts - 600).max() < 82


def test_layer_computes_with_the_values_added_at_their_places():
    layer = nn.Linear(5, 4)
    network = nn.Sequential(layer, nn.Linear(4, 2))
    own = layer.weight.detach().clone()
    torch_peft.inject(network, "sparse", {"density": 0.25})
    assert layer.sparse_values.shape == layer.sparse_indices.shape == (5,)
    nn.init.constant_(layer.sparse_values, 2.0)
    expected = own.clone().flatten()
    expected[layer.sparse_indices] += 2
    x = torch.randn(3, 5)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, expected.reshape(4, 5), layer.bias))
    assert torch.equal(layer.state_dict()["weight"], own)


def test_gradient_is_that_of_the_weight_at_these_places(make, images):
    network, plain = make("wrn"), make("wrn")
    torch_peft.inject(network, "sparse", {})
    network(images).square().sum().backward()
    plain(images).square().sum().backward()
    layer = network.group2[0].conv1
    expected = plain.group2[0].conv1.weight.grad.flatten()[layer.sparse_indices]
    torch.testing.assert_close(layer.sparse_values.grad, expected)


def test_weight_that_another_module_reads_has_the_values_too(make, images):
    """ViT's patch embedding reads the weight of its convolution."""
    network = make("vit")
    torch_peft.inject(network, "sparse", {})
    nn.init.normal_(network.head.weight)
    network(images).square().sum().backward()
    assert network.patch_embed.proj.sparse_values.grad.any()


def test_layers_are_linear_and_convolutional_but_not_the_head(make):
    network = make("wrn")
    torch_peft.inject(network, "sparse", {"density": 0.5})
    sizes = {
        name: len(layer.sparse_values)
        for name, layer in network.named_modules()
        if hasattr(layer, "sparse_values")
    }
    expected = {n: m.weight.numel() // 2 for n, m in network.named_modules() if isinstance(m, nn.Conv2d)}
    assert sizes == expected


def test_layers_too_small_for_a_place_have_none():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 10), nn.Linear(10, 2))
    torch_peft.inject(network, "sparse", {})
    assert torch_peft.members(network, "sparse", "2") == ("1.sparse_values", "2.weight", "2.bias")
