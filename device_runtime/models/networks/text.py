"""Text classifiers of two LSTM or GRU layers over frozen word vectors, and these layers.

LSTM and GRU layers with small training graphs.

Unrolled by autograd, a layer of 32 steps is some 800 nodes. Here a forward pass without gradients is one
node, ONNX's own operator. It gives the hidden states alone, while the backward pass needs the gates of all
steps. A GRU computes them again, in two matrix products. An LSTM whose gradients are needed is written step
by step instead: that saves a quarter of all products.

The backward pass first computes every factor that does not depend on the gradient, for all steps at once.
Only one product with the recurrent weights remains for each step; weight gradients are products over all
steps at once. Products are Gemm nodes, which add what follows a product at no cost.

Shapes: T steps, n samples, E inputs, H hidden; x (T, n, E), y (T, n, H). The backward pass has the steps one
below the other, (T n, width). Weights and gates are laid out as in torch: w_ih (G H, E), w_hh (G H, H), b_ih
and b_hh (G H,); GRU r, z, n; LSTM i, f, g, o.

Text classifiers of two LSTM or GRU layers over frozen word vectors.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls, allow-untyped-decorators

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.functional import linear
from torch.onnx import ops

from .convolutional import mean_state

Weights = tuple[Tensor, Tensor, Tensor, Tensor]
"""w_ih, w_hh, b_ih, b_hh."""

OPERATOR_VERSION = 14  # of GRU and LSTM in ONNX
PLAIN_VERSION = 13  # of Gemm and Gather
SPLIT_VERSION = 18
GRU_ORDER = (1, 0, 2)  # ONNX has z, r, n
LSTM_ORDER = (0, 3, 1, 2)  # ONNX has i, o, f, g
_ONE_LAYER = (True, 1, 0.0, True, False, False)
"""The last arguments of torch's GRU and LSTM.

They are: biases, one layer, no dropout, training mode, one direction, steps first. cuDNN gives gradients only
in training mode; without dropout it computes the same.
"""


def gru_layer(x: Tensor, weights: Weights) -> Tensor:
    """y of one GRU layer that starts at 0 (Cho et al. 2014; as in torch, r also multiplies b_hh)."""
    if get_proxy_mode() is not None:
        return _Gru.apply(x, *weights)
    if is_functorch_wrapped_tensor(x) or is_functorch_wrapped_tensor(weights[0]):
        return _gru_of_copies(x, weights)
    start = x.new_zeros(1, x.shape[1], weights[1].shape[1])
    return torch._VF.gru(x, start, weights, *_ONE_LAYER)[0]


def lstm_layer(x: Tensor, weights: Weights) -> Tensor:
    """y of one LSTM layer that starts at 0 (Hochreiter and Schmidhuber 1997, with a forget gate)."""
    if get_proxy_mode() is not None:
        return _Lstm.apply(x, *weights)
    if is_functorch_wrapped_tensor(x) or is_functorch_wrapped_tensor(weights[0]):
        return _lstm_of_copies(x, weights)
    start = x.new_zeros(1, x.shape[1], weights[1].shape[1])
    return torch._VF.lstm(x, (start, start), weights, *_ONE_LAYER)[0]


def _gru_of_copies(x: Tensor, weights: Weights) -> Tensor:
    """`gru_layer` step by step: vmap runs torch's own operator for one copy after another."""
    w_ih, w_hh, b_ih, b_hh = weights
    states = [x.new_zeros(x.shape[1], w_hh.shape[1])]
    for from_x in linear(x, w_ih, b_ih).unbind():
        (x_r, x_z, x_n), (h_r, h_z, h_n) = from_x.chunk(3, 1), linear(states[-1], w_hh, b_hh).chunk(3, 1)
        z, n = torch.sigmoid(x_z + h_z), torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        states.append(n + z * (states[-1] - n))
    return torch.stack(states[1:])


def _lstm_of_copies(x: Tensor, weights: Weights) -> Tensor:
    """`lstm_layer` step by step, as `_gru_of_copies`."""
    w_ih, w_hh, b_ih, b_hh = weights
    states = [x.new_zeros(x.shape[1], w_hh.shape[1])]
    cell = states[0]
    for from_x in linear(x, w_ih, b_ih + b_hh).unbind():
        i, f, g, o = (from_x + linear(states[-1], w_hh)).chunk(4, 1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        states.append(torch.sigmoid(o) * torch.tanh(cell))
    return torch.stack(states[1:])


class _Gru(torch.autograd.Function):
    """A GRU layer for tracing; eager torch uses its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        y = _operator("GRU", x, weights, GRU_ORDER, {"linear_before_reset": 1})
        ctx.save_for_backward(x, y, *weights)
        return y

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of h_t is delta_t = dy_t + [delta (a_r, a_z, a_q)]_t+1 w_hh + (delta z)_t+1.

        The factors a_ follow from h = (1 - z) n + z h', n = tanh(x_n + r q), q = w_hn h' + b_hn.
        """
        x, y, w_ih, w_hh, b_ih, b_hh = ctx.saved_tensors
        steps, before = len(x), _before(y)
        from_x = _gemm(x.flatten(0, 1), w_ih, b_ih, transposed=True).chunk(3, 1)
        from_h = _gemm(before, w_hh, b_hh, transposed=True).chunk(3, 1)
        r, z = torch.sigmoid(from_x[0] + from_h[0]), torch.sigmoid(from_x[1] + from_h[1])
        q = from_h[2]
        n = torch.tanh(from_x[2] + r * q)
        a_n = (1 - z) * (1 - n * n)
        a_q = a_n * r
        a_r = a_q * q * (1 - r)
        a_z = (before - n) * z * (1 - z)
        factors = _split(torch.cat([a_r, a_z, a_q, z], 1), steps)
        grads = _split(grad[0].flatten(0, 1), steps)
        recurrent = torch.cat([w_hh, torch.eye(w_hh.shape[1])])
        deltas = [grads[-1]]
        for t in range(steps - 1, 0, -1):
            flow = torch.cat([deltas[0]] * 4, 1) * factors[t]
            deltas.insert(0, _gemm(flow, recurrent, grads[t - 1]))
        delta = torch.cat(deltas)
        to_r, to_z = a_r * delta, a_z * delta
        to_x = torch.cat([to_r, to_z, a_n * delta], 1)
        return _gradients(ctx, to_x, torch.cat([to_r, to_z, a_q * delta], 1), before)


class _Lstm(torch.autograd.Function):
    """An LSTM layer for tracing; eager torch uses its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        """ONNX's operator, or step by step where gradients are needed: they need all gates and cells."""
        if not any(ctx.needs_input_grad):
            return _operator("LSTM", x, weights, LSTM_ORDER, {})
        w_ih, w_hh, b_ih, b_hh = weights
        hidden, turned = w_hh.shape[1], w_hh.t().contiguous()
        gates = list(_split(_gemm(x.flatten(0, 1), w_ih, b_ih + b_hh, transposed=True), len(x)))
        states: list[Tensor] = []
        cells: list[Tensor] = []
        for t in range(len(x)):
            if t:
                gates[t] = _gemm(states[-1], turned, gates[t])
            i, f, _, o = torch.sigmoid(gates[t]).chunk(4, 1)
            added = i * torch.tanh(gates[t].narrow(1, 2 * hidden, hidden))
            cells.append(f * cells[-1] + added if t else added)
            states.append(o * torch.tanh(cells[-1]))
        y = torch.cat(states).reshape(*x.shape[:2], hidden)
        ctx.gates, ctx.cells = torch.cat(gates), cells
        ctx.save_for_backward(x, y, *weights)
        return y

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes d_h and d_c, the gradients of h_t and c_t, back in time: c = f c' + i g, h = o tanh(c)."""
        x, y, _, w_hh, *_ = ctx.saved_tensors
        steps, h = len(x), y.flatten(0, 1)
        i, f, g, o = ctx.gates.chunk(4, 1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        added = i * g
        a_c = o - h * torch.tanh(torch.cat(ctx.cells))
        c_before = torch.cat([torch.zeros_like(ctx.cells[0]), *ctx.cells[:-1]])
        factors = torch.cat([added * (1 - i), c_before * f * (1 - f), i - added * g, h * (1 - o)], 1)
        grads, forgets = _split(grad[0].flatten(0, 1), steps), _split(f, steps)
        flows = _flows(grads, _split(factors, steps), forgets, _split(a_c, steps), w_hh)
        to_gates = torch.cat(flows)
        return _gradients(ctx, to_gates, to_gates, _before(y))


def _flows(
    grads: Sequence[Tensor],
    factors: Sequence[Tensor],
    forgets: Sequence[Tensor],
    a_c: Sequence[Tensor],
    w_hh: Tensor,
) -> list[Tensor]:
    """The gradient of the four gates before their activations, (n, 4 H) for each step."""
    d_h = grads[-1]
    d_c = d_h * a_c[-1]
    flows = [torch.cat([d_c, d_c, d_c, d_h], 1) * factors[-1]]
    for t in range(len(grads) - 1, 0, -1):
        d_h = _gemm(flows[0], w_hh, grads[t - 1])
        d_c = d_c * forgets[t] + d_h * a_c[t - 1]
        flows.insert(0, torch.cat([d_c, d_c, d_c, d_h], 1) * factors[t - 1])
    return flows


def _gradients(ctx: Any, to_x: Tensor, to_h: Tensor, before: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of x, w_ih, w_hh, b_ih, b_hh; to_x and to_h (T n, G H) are those of the two products."""
    x, _, w_ih, *_ = ctx.saved_tensors
    needed = ctx.needs_input_grad
    of_bias = to_x.sum(0)
    return (
        torch.mm(to_x, w_ih).reshape(x.shape) if needed[0] else None,
        torch.mm(to_x.t(), x.flatten(0, 1)) if needed[1] else None,
        torch.mm(to_h.t(), before) if needed[2] else None,
        of_bias if needed[3] else None,
        (of_bias if to_h is to_x else to_h.sum(0)) if needed[4] else None,
    )


def _before(y: Tensor) -> Tensor:
    """The hidden states one step earlier, (T n, H)."""
    return torch.cat([torch.zeros_like(y[:1]), y[:-1]]).flatten(0, 1)


def _gemm(x: Tensor, weight: Tensor, added: Tensor, transposed: bool = False) -> Tensor:
    """x (m, A) @ weight (A, B), or weight (B, A) if it is transposed, + added (m, B) or (B,), in one node."""
    shape = (x.shape[0], weight.shape[0 if transposed else 1])
    inputs, settings = [x, weight, added], {"transB": int(transposed)}
    return ops.symbolic("Gemm", inputs, settings, dtype=x.dtype, shape=shape, version=PLAIN_VERSION)


def _operator(
    kind: str, x: Tensor, weights: Sequence[Tensor], order: Sequence[int], settings: dict[str, int]
) -> Tensor:
    """ONNX's operator, with another order of gates, both biases in one tensor, and an axis of directions."""
    gates, hidden = len(order), weights[1].shape[1]
    w_ih, w_hh, b_ih, b_hh = (_reordered(w.reshape(gates, hidden, -1), order) for w in weights)
    biases = torch.cat([b_ih, b_hh]).reshape(1, -1)
    inputs = [x, *(w.reshape(1, gates * hidden, -1) for w in (w_ih, w_hh)), biases]
    shape = (x.shape[0], 1, x.shape[1], hidden)
    attributes = {"hidden_size": hidden, **settings}
    return ops.symbolic(
        kind, inputs, attributes, dtype=x.dtype, shape=shape, version=OPERATOR_VERSION
    ).squeeze(1)


def _reordered(w: Tensor, order: Sequence[int]) -> Tensor:
    """w (gates, H, ..) with the gates in another order, in one node, which copies whole gates."""
    inputs = [w, torch.tensor(order)]
    return ops.symbolic("Gather", inputs, {"axis": 0}, dtype=w.dtype, shape=w.shape, version=PLAIN_VERSION)


def _split(x: Tensor, steps: int) -> Sequence[Tensor]:
    """(T n, width) as T tensors of (n, width), in one node."""
    shapes = [(x.shape[0] // steps, *x.shape[1:])] * steps
    parts: Sequence[Tensor] = ops.symbolic_multi_out(
        "Split", [x], {"axis": 0, "num_outputs": steps}, dtypes=[x.dtype] * steps, shapes=shapes,
        version=SPLIT_VERSION,
    )  # fmt: skip
    return parts


PADDING = 0  # the token id that fills up short texts
LAYERS = 2
Layer = Callable[[Tensor, Weights], Tensor]


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

    def _weights(self, number: int) -> Weights:
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
        if self.rnn.layer is not lstm_layer:
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
    return TextClassifier(Recurrent(lstm_layer, 4, dim, hidden), table, classes)


def gru(
    vocabulary: int = 10000, classes: int = 2, dim: int = 100, hidden: int = 128, vectors: str = ""
) -> TextClassifier:
    """Two GRU layers of `hidden` units; everything else as in `lstm`."""
    table = _table(vocabulary, dim, vectors)
    return TextClassifier(Recurrent(gru_layer, 3, dim, hidden), table, classes)


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
