import pytest

torch = pytest.importorskip("torch")

from torch import nn

from device_runtime.models.torch_engine.place import INNERMOST, channels_innermost, keep_layout


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_are_innermost_even_if_there_is_one(channels):
    x = torch.randn(2, channels, 5, 4)
    laid = channels_innermost(x)
    assert torch.equal(laid, x)
    assert laid.stride() == (5 * 4 * channels, 1, 4 * channels, channels)
    assert nn.Conv2d(channels, 6, 3)(laid).is_contiguous(memory_format=INNERMOST)


def test_what_are_no_images_stays_as_it_is():
    for x in (torch.randn(2, 3), torch.zeros((2, 3, 4, 4), dtype=torch.int64)):
        assert channels_innermost(x) is x


def test_poolings_hand_gradients_on_in_the_layout_of_their_maps():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 2))
    x, slopes = torch.randn(2, 3, 8, 8), []
    [expected] = torch.autograd.grad(module(x).square().sum(), [module[0].weight])

    def watched(part, inputs, output):
        output.register_hook(slopes.append)

    def gradient():
        """Of the convolution; the gradient that the pooling is handed goes to `seen`."""
        watch = module[1].register_forward_hook(watched)
        [grad] = torch.autograd.grad(module(channels_innermost(x)).square().sum(), [module[0].weight])
        watch.remove()
        return grad

    assert torch.allclose(gradient(), expected, atol=1e-5)
    keep_layout(module)
    assert torch.allclose(gradient(), expected, atol=1e-5)
    assert [slope.is_contiguous(memory_format=INNERMOST) for slope in slopes] == [False, True]


def test_the_first_trained_group_norm_has_its_gradients_where_nothing_below_is_trained():
    """Without the change torch 2.13 ends the whole process here."""
    torch.manual_seed(0)
    norm, x = nn.GroupNorm(2, 16), torch.randn(3, 16, 5, 5)
    expected = torch.autograd.grad(norm(x).square().sum(), [norm.weight, norm.bias])
    keep_layout(norm)
    grads = torch.autograd.grad(norm(channels_innermost(x)).square().sum(), [norm.weight, norm.bias])
    assert all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(grads, expected, strict=True))
    with torch.no_grad():
        assert torch.allclose(norm(channels_innermost(x)), norm(x), atol=1e-5)
