import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.networks.convolutional import SamePadded, mobilenet_v2


def test_size_is_that_of_the_published_network():
    """3.5 million (paper, table 4): 3,504,872 parameters with 1000 classes."""
    assert sum(p.numel() for p in mobilenet_v2().parameters()) == 3_504_872


@pytest.mark.parametrize(("width", "first", "last"), [(0.35, 16, 1280), (0.5, 16, 1280), (1.4, 48, 1792)])
def test_channels_are_multiples_of_eight(width, first, last):
    """32 * 0.35 = 11.2 would be 8, which is less than nine tenths of it; 44.8 is nearest to 48."""
    module = mobilenet_v2(3, width)
    assert module.features[0][0].out_channels == first
    assert module.classifier[1].in_features == last


@pytest.mark.parametrize("size", [6, 7])
def test_same_padding_puts_the_odd_zero_last(size):
    """Of a 3x3 kernel at stride 2: an even size needs one zero, after; an odd one two, one on either side."""
    convolution = SamePadded(1, 1, 3, 2, 0, groups=1, bias=False)
    x, w = torch.randn(1, 1, size, size), convolution.weight.detach()
    before = 0 if size % 2 == 0 else 1
    padded = np.zeros((9, 9), np.float32)
    padded[before : before + size, before : before + size] = x[0, 0]
    places = range(0, 2 * ((size + 1) // 2), 2)
    expected = [[(padded[i : i + 3, j : j + 3] * w[0, 0].numpy()).sum() for j in places] for i in places]
    with torch.no_grad():
        np.testing.assert_allclose(convolution(x)[0, 0], expected, rtol=1e-4, atol=1e-5)


def test_paddings_share_their_parameters_and_are_one_pixel_apart_at_stride_two():
    plain, same = mobilenet_v2(3, 0.35).eval(), mobilenet_v2(3, 0.35, "same").eval()
    same.load_state_dict(plain.state_dict())
    padded = [name for name, module in same.named_modules() if isinstance(module, SamePadded)]
    strided = [n for n, m in plain.named_modules() if isinstance(m, torch.nn.Conv2d) and m.stride == (2, 2)]
    assert padded == strided
    assert len(padded) == 5
    x = torch.randn(1, 3, 8, 8)
    moved = torch.nn.functional.pad(x, (0, 1, 0, 1))[..., 1:, 1:]  # its first row and column are lost
    with torch.no_grad():
        inner, other = plain.features[0][0](moved), same.features[0][0](x)
    torch.testing.assert_close(inner[..., 1:, 1:], other[..., 1:, 1:])
    assert not torch.allclose(inner[..., 0, :], other[..., 0, :])


def test_fresh_network_passes_on_what_it_sees():
    """While batch norm does nothing yet; counting all groups in the fan gives features of 1e-9."""
    torch.manual_seed(0)
    with torch.no_grad():
        features = mobilenet_v2(3).eval().features(torch.randn(4, 3, 64, 64))
    assert 0.1 < features.std().item() < 10


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="padding is 'valid', expected one of torch, same"):
        mobilenet_v2(padding="valid")
    with pytest.raises(ValueError, match="width is 0"):
        mobilenet_v2(width=0)
