import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.networks.convolutional import squeezenet

TABLE_1 = 1_248_424  # parameters of version 1.0 with 1000 classes, biases included


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("head", ["linear", "conv"])
def test_size_is_that_of_the_paper_whatever_the_head(head):
    """1.1 has a stem of 64 * (3 * 9 + 1) instead of 96 * (3 * 49 + 1), and 32 * 16 fewer weights after it."""
    assert count(squeezenet("1.0", 1000, head)) == TABLE_1
    assert count(squeezenet("1.1", 1000, head)) == TABLE_1 - 96 * 148 + 64 * 28 - 32 * 16


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_last_feature_maps_are_512_of_13_by_13(version):
    """224 -> 109 (kernel 7) or 111 (kernel 3) -> poolings to 54 or 55, to 27, to 13."""
    with torch.no_grad():
        assert squeezenet(version).features(torch.zeros(1, 3, 224, 224)).shape == (1, 512, 13, 13)


def test_linear_head_is_the_convolution_without_relu():
    """A 1x1 convolution and the average over places exchange."""
    torch.manual_seed(3)
    original, ours = squeezenet("1.1", 5, "conv").eval(), squeezenet("1.1", 5).eval()
    state = original.state_dict()
    state["classifier.1.weight"] = state["classifier.1.weight"].flatten(1)
    state["classifier.1.bias"] = torch.full((5,), 100.0)  # above 0 everywhere, so that ReLU changes nothing
    ours.load_state_dict(state)
    original.classifier[1].bias.data.fill_(100.0)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), original(x))


def test_version_may_be_a_number_and_gray_images_are_taken():
    assert squeezenet(1.1, 5, in_channels=1)(torch.randn(1, 1, 40, 40)).shape == (1, 5)


def test_head_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="head is 'mlp', expected one of linear, conv"):
        squeezenet(head="mlp")
