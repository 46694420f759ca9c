"""Text classifiers of two LSTM or GRU layers over frozen word vectors."""
# mypy: allow-untyped-calls, allow-any-unimported, allow-subclassing-any

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from . import recurrent
from .building_blocks import mean_state

PADDING = 0  # the token id that fills up short texts
LAYERS = 2
Layer = Callable[[Tensor, recurrent.Weights], Tensor]


class Recurrent(nn.Module):
    """Two recurrent layers with the parameter names and initial values of torch's nn.LSTM and nn.GRU."""

    def __init__(self, layer: Layer, gates: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.layer = layer
        for number in range(LAYERS):
            shapes = {
                "weight_ih": (gates * hidden, hidden if number else inputs),
                "weight_hh": (gates * hidden, hidden),
                "bias_ih": (gates * hidden,),
                "bias_hh": (gates * hidden,),
            }
            for name, shape in shapes.items():
                value = nn.Parameter(torch.empty(shape).uniform_(-(hidden**-0.5), hidden**-0.5))
                self.register_parameter(f"{name}_l{number}", value)
        self.first, self.second = nn.Identity(), nn.Identity()  # their outputs are the levels' feature maps

    def _weights(self, number: int) -> recurrent.Weights:
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self, f"{name}_l{number}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        return w_ih, w_hh, b_ih, b_hh

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, inputs) -> (n, length, hidden)."""
        for number, level in enumerate((self.first, self.second)):
            x = level(self.layer(x.transpose(0, 1), self._weights(number)).transpose(0, 1))
        return x


class Average(nn.Module):
    """The mean over all tokens but padding."""

    def forward(self, states: Tensor, ids: Tensor) -> Tensor:
        """(n, length, hidden), (n, length) -> (n, hidden); zeros for a text without tokens."""
        return mean_state(states, ids != PADDING)


class TextClassifier(nn.Module):
    """A text classifier: token ids to logits.

    Texts are padded at the end, so that padding comes after every state that counts. The head takes the mean
    of the states: each step gets its gradient directly, and the last token need not be looked up.
    """

    levels = {  # noqa: RUF012
        "embedding": "low",
        **{f"rnn.{name}_l0": "low" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
        **{f"rnn.{name}_l1": "mid" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
        "head": "head",
    }
    level_outputs = {"low": "rnn.first", "mid": "rnn.second", "up": "pool"}  # noqa: RUF012

    def __init__(self, rnn: Recurrent, vectors: Tensor, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors, freeze=True)
        self.rnn = rnn
        self.pool = Average()
        self.head = nn.Linear(rnn.get_parameter("weight_hh_l1").shape[1], classes)

    def traced_with(self, trained: Sequence[str]) -> tuple[str, ...]:
        """The layers that are written step by step if these tensors are trained, "l0" and "l1".

        Tunable sets with the same layers share a trace.
        """
        if self.rnn.layer is not recurrent.lstm:
            return ()
        last = {name.rpartition("_")[2] for name in trained if name.startswith("rnn.")}
        return tuple(sorted(last))

    def forward(self, x: Tensor) -> Tensor:
        """(n, length) int64 -> (n, classes)."""
        return self.head(self.pool(self.rnn(self.embedding(x)), x))


def lstm(
    vocabulary: int = 10000, classes: int = 2, dim: int = 100, hidden: int = 128, vectors: str = ""
) -> TextClassifier:
    """Two LSTM layers of `hidden` units over word vectors of width `dim`, which are not trained.

    `vectors` names a .npy file of float32 (vocabulary, dim), for example GloVe's, with row 0 for padding;
    without it the vectors are standard normal, from torch's global generator. Raises ValueError for a file of
    another shape or dtype.
    """
    table = _table(vocabulary, dim, vectors)
    return TextClassifier(Recurrent(recurrent.lstm, 4, dim, hidden), table, classes)


def gru(
    vocabulary: int = 10000, classes: int = 2, dim: int = 100, hidden: int = 128, vectors: str = ""
) -> TextClassifier:
    """Two GRU layers of `hidden` units; everything else as in `lstm`."""
    table = _table(vocabulary, dim, vectors)
    return TextClassifier(Recurrent(recurrent.gru, 3, dim, hidden), table, classes)


def _table(vocabulary: int, dim: int, vectors: str) -> Tensor:
    if vectors:
        table = np.load(Path(vectors), allow_pickle=False)
        if table.shape != (vocabulary, dim) or table.dtype != np.float32:
            raise ValueError(
                f"{vectors} holds {table.dtype} {table.shape}, expected float32 {(vocabulary, dim)}"
            )
        return torch.from_numpy(table)
    table = torch.randn(vocabulary, dim)
    table[PADDING] = 0
    return table
