"""Small networks of two kinds: tokens and feature maps."""

from collections.abc import Callable

import pytest


@pytest.fixture
def make() -> Callable:
    """A network by its kind, with the same random weights each time, in eval mode."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.networks.convolutional import wrn
    from device_runtime.models.networks.vision import vit

    def make(kind: str):
        torch.manual_seed(0)
        if kind == "vit":
            network = vit("tiny", classes=5, image=8, patch=4, depth=3, dim=16, heads=2)
        else:
            network = wrn(10, 1, 3, 5)
        return network.eval()

    return make


@pytest.fixture
def images():
    """Three random images (3, 3, 8, 8)."""
    torch = pytest.importorskip("torch")
    return torch.randn((3, 3, 8, 8), generator=torch.Generator().manual_seed(1))
