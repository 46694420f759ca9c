"""The network that the devices train: a small convolutional network for colour pictures of 16x16."""

from torch import Tensor, nn


class Network(nn.Module):
    """Two convolutions, a dense layer, and the head, which gives one value for each class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.dense = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)
        # A device that cannot train every level trains the upper ones. Without these lines,
        # levels are thirds by size.
        self.levels = {"conv1": "low", "conv2": "mid", "dense": "up", "head": "head"}
        self.level_outputs = {"low": "conv1", "mid": "conv2", "up": "dense"}

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, 16, 16) -> (n, classes)."""
        return self.head(self.dense(self.conv2(self.conv1(x))))


def build(classes: int = 4) -> Network:
    """What `export network:build` calls, with the arguments that `--set NAME=VALUE` gives."""
    return Network(classes)
