"""Gradients of torch's operators, and a few forward passes, written in operators that ONNX has.

They replace torch's fused kernels while tracing. Those of convolutions and norms are in
`torch_modules.layers`. Shapes: x (n, channels, height, width), go the gradient of an operator's output.

The operators of an exported graph are labelled with the layer that they compute, as a convolution's
gradient is dozens of standard operators. A device that has faster operators of its own replaces them
(`engines.blocked`). The label is text in a node; a device that does not read it runs the operators as
they are.
"""
# mypy: allow-any-unimported, allow-subclassing-any, allow-untyped-calls, allow-untyped-decorators

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .layers import (
    batch_norm,
    batch_norm_backward,
    batch_statistics_backward,
    convolution_backward,
    group_norm,
    group_norm_backward,
)

LAYER = "device_runtime::layer"
MAPS = (3, 4)
"""Dimensions of feature maps: (n, channels, length) or (n, channels, height, width)."""


@torch.library.custom_op(LAYER, mutates_args=())
def layer(
    result: Tensor, name: str, output: int, inputs: Sequence[Tensor], numbers: Sequence[float]
) -> Tensor:
    """The result itself, described as an output of layer `name` with these inputs and settings."""
    return result.clone()


@layer.register_fake
def _(result: Tensor, name: str, output: int, inputs: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
    return torch.empty_like(result)


def describing(
    name: str, function: Callable[..., Any], tensors: Sequence[int], numbers: Sequence[int]
) -> Callable[..., Any]:
    """Wraps a function so that its outputs are labelled; tensors, numbers: positions of arguments to keep.

    Nothing is described if an argument of `tensors` is None, or the first of them is no batch of maps.
    """

    def described(*arguments: Any) -> Any:
        outputs = function(*arguments)
        inputs = [arguments[index] for index in tensors]
        if any(value is None for value in inputs) or inputs[0].dim() not in MAPS:
            return outputs
        settings = [
            float(number)
            for index in numbers
            for number in (
                arguments[index] if isinstance(arguments[index], (list, tuple)) else [arguments[index]]
            )
        ]
        if isinstance(outputs, Tensor):
            return layer(outputs, name, 0, inputs, settings)
        return tuple(
            None if value is None else layer(value, name, index, inputs, settings)
            for index, value in enumerate(outputs)
        )

    return described


def undescribed(model: bytes) -> bytes:
    """The ONNX file without descriptions."""
    import onnx  # the torch engine needs these modules, and not this package

    parsed = onnx.load_from_string(model)
    for node in parsed.graph.node:
        node.doc_string = ""
    contents: bytes = parsed.SerializeToString(deterministic=True)
    return contents


def without_descriptions(graph: fx.GraphModule) -> fx.GraphModule:
    """Removes the descriptions, which torch's own exporter does not know; changes the graph."""
    for node in list(graph.graph.nodes):
        if is_description(node):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph


def is_description(node: fx.Node) -> bool:
    """Whether the node only describes its first argument."""
    return node.op == "call_function" and bool(node.target == torch.ops.device_runtime.layer.default)


def description(shape: Sequence[int] | None, layer: Mapping[str, Any] | None) -> str:
    """The text for a node: shape of its output, 0 for the batch, and the layer that it completes."""
    fields = {**({"shape": list(shape)} if shape else {}), **(layer or {})}
    return json.dumps(fields, separators=(",", ":")) if fields else ""


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The description with new names of values; without its layer if an input no longer exists."""
    if not text:
        return ""
    fields = json.loads(text)
    if "inputs" in fields:
        if any(name not in names for name in fields["inputs"]):
            return description(fields.get("shape"), None)
        fields["inputs"] = [names[name] for name in fields["inputs"]]
    return description(None, fields)


aten = torch.ops.aten

NONE, MEAN = 0, 1  # torch's codes for the reduction of a loss; 2 is the sum


def max_pool_backward(go: Tensor, x: Tensor, *settings: Any) -> Tensor:
    """Adds each gradient to the place of its maximum; the last of `settings` are torch's flat indices."""
    indices = settings[-1]
    zeros = torch.zeros_like(x).flatten(2)
    return zeros.scatter_add(2, indices.flatten(2), go.flatten(2)).reshape(x.shape)


def avg_pool_backward(
    go: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """Spreads each gradient evenly over its window: a transposed convolution with equal weights."""
    if ceil_mode or divisor is not None:
        raise NotImplementedError(
            "only average pooling without ceil_mode and divisor_override can be trained"
        )
    stride, channels = stride or kernel, x.shape[1]
    if max(padding) > 0 and not count_include_pad:  # the mean of ones is the share that is no padding
        go = go / aten.avg_pool2d(torch.ones(1, 1, *x.shape[2:]), kernel, stride, padding)
    weight = torch.full((channels, 1, *kernel), 1 / (kernel[0] * kernel[1]))
    rest = [x.shape[2 + i] - (go.shape[2 + i] - 1) * stride[i] + 2 * padding[i] - kernel[i] for i in (0, 1)]
    return aten.convolution(go, weight, None, stride, padding, [1, 1], True, rest, channels)


def adaptive_avg_pool_backward(go: Tensor, x: Tensor) -> Tensor:
    """As average pooling over windows of one size."""
    window = _equal_windows(x, go.shape[2:])
    return avg_pool_backward(go, x, window, window, [0, 0], False, True, None)


def adaptive_max_pool(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """As max pooling over windows of one size; its backward is that of max pooling."""
    window = _equal_windows(x, sizes)
    maps, places = aten.max_pool2d_with_indices(x, window, window)
    return maps, places


def _equal_windows(x: Tensor, sizes: Sequence[int]) -> list[int]:
    """The windows of adaptive pooling to `sizes`. Raises NotImplementedError if their sizes differ."""
    if any(whole % size for whole, size in zip(x.shape[2:], sizes, strict=True)):
        maps, output = ("x".join(str(n) for n in shape) for shape in (x.shape[2:], sizes))
        raise NotImplementedError(
            f"adaptive pooling of {maps} to {output} cannot be trained, only to sizes that divide these"
        )
    return [whole // size for whole, size in zip(x.shape[2:], sizes, strict=True)]


def nll_loss(
    x: Tensor, y: Tensor, weight: Tensor | None, reduction: int, ignore: int
) -> tuple[Tensor, Tensor]:
    """-weight[y] * x[i, y[i]], of each sample, or summed, or the weighted mean; and the sum of the weights.

    x: (n, classes) log-probabilities, y: (n,). Samples with label `ignore` count 0.
    """
    if _is_plain_mean(weight, reduction, ignore):
        return -x.gather(1, y.unsqueeze(1)).squeeze(1).mean(), x.new_zeros(())
    labels, weights = _labels_and_weights(x, y, weight, ignore)
    losses = -x.gather(1, labels.unsqueeze(1)).squeeze(1) * weights
    total = weights.sum()
    if reduction == NONE:
        return losses, total
    return losses.sum() / total if reduction == MEAN else losses.sum(), total


def nll_loss_backward(
    go: Tensor, x: Tensor, y: Tensor, weight: Tensor | None, reduction: int, ignore: int, total: Tensor
) -> Tensor:
    """-weight[y] * go at the labels y, else 0; go divided by `total`, the sum of weights, for the mean."""
    one_hot = (y.unsqueeze(1) == torch.arange(x.shape[1]).unsqueeze(0)).to(x.dtype)
    if _is_plain_mean(weight, reduction, ignore):
        return one_hot * (-go / x.shape[0])
    _, weights = _labels_and_weights(x, y, weight, ignore)
    return one_hot * (-weights * (go / total if reduction == MEAN else go)).unsqueeze(1)


def _is_plain_mean(weight: Tensor | None, reduction: int, ignore: int) -> bool:
    return weight is None and reduction == MEAN and ignore < 0


def _labels_and_weights(x: Tensor, y: Tensor, weight: Tensor | None, ignore: int) -> tuple[Tensor, Tensor]:
    """Labels of 0 in place of `ignore`, and each sample's weight, 0 for these."""
    counts = (y != ignore).to(x.dtype)
    labels = y * (y != ignore).to(y.dtype)
    return labels, counts if weight is None else weight.index_select(0, labels) * counts


def weight_norm_backward(go: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of v and g of the weight g * v / norms(v) (Salimans and Kingma 2016, equation 3)."""
    along = (go * v).sum([axis for axis in range(v.dim()) if axis != dim], keepdim=True)
    return g / norms * (go - v * along / (norms * norms)), along / norms


def threshold_backward(go: Tensor, x: Tensor, threshold: float) -> Tensor:
    """Passes gradients where x is above the threshold. On ONNX Runtime a product is faster than Where."""
    return go * (x > threshold).to(go.dtype)


def hardtanh_backward(go: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Passes gradients where x is between the bounds."""
    return go * ((x > low) & (x < high)).to(go.dtype)


def select_backward(go: Tensor, sizes: Sequence[Any], dim: int, index: int) -> Tensor:
    """Zeros, with the gradient at one index along `dim`."""
    dim %= len(sizes)
    start = index % sizes[dim]
    return _embed(go.unsqueeze(dim), sizes, dim, start)


def slice_backward(go: Tensor, sizes: Sequence[Any], dim: int, start: int, end: int, step: int) -> Tensor:
    """Zeros, with the gradient in the range of the slice."""
    dim %= len(sizes)
    start = start + sizes[dim] if start < 0 else start
    if step == 1:
        return _embed(go, sizes, dim, start)
    apart = _spread(go, dim, step)  # (.., 1 + (count - 1) * step, ..) after the last one's zeros are cut
    return _embed(apart, sizes, dim, start)


def _spread(go: Tensor, dim: int, step: int) -> Tensor:
    """The values along `dim` with step - 1 zeros between them."""
    count = go.shape[dim]
    rows = aten.constant_pad_nd(go.unsqueeze(dim + 1), [0, 0] * (go.dim() - 1 - dim) + [0, step - 1], 0.0)
    return rows.flatten(dim, dim + 1).narrow(dim, 0, 1 + (count - 1) * step)


def _embed(go: Tensor, sizes: Sequence[Any], dim: int, start: int) -> Tensor:
    after = sizes[dim] - start - go.shape[dim]
    return aten.constant_pad_nd(go, [0, 0] * (len(sizes) - 1 - dim) + [start, after], 0.0)


def embedding_backward(go: Tensor, indices: Tensor, rows: int, padding_index: int, scale: bool) -> Tensor:
    """Adds each gradient to the row that was looked up; go: (..., width), result (rows, width)."""
    if scale:
        raise NotImplementedError("embeddings with gradients scaled by frequency cannot be trained")
    if padding_index >= 0:  # this row is not trained
        go = go * (indices != padding_index).to(go.dtype).unsqueeze(-1)
    width = go.shape[-1]
    return torch.zeros(rows, width).scatter_add(
        0, indices.reshape(-1, 1).expand(-1, width), go.reshape(-1, width)
    )


class BatchNorm(torch.autograd.Function):
    """`batch_norm` with its gradient as a whole: x (n, channels, ..), w and b (channels,), eps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, variance = _BATCH_NORM(x, w, b, eps)
        ctx.save_for_backward(x, w, mean, variance)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    def backward(ctx: Any, go: Tensor, *unused: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        return (*_BATCH_STATISTICS_BACKWARD(go, *ctx.saved_tensors, ctx.eps), None)


def described_convolution_backward(*arguments: Any) -> Any:
    """`convolution_backward`, described unless the convolution is transposed."""
    transposed = arguments[7]
    return (convolution_backward if transposed else _CONVOLUTION_BACKWARD)(*arguments)


_CONVOLUTION_BACKWARD = describing(
    "convolution_backward", convolution_backward, tensors=(0, 1, 2), numbers=(4, 5, 6, 9)
)
_BATCH_NORM = describing("batch_norm", batch_norm, tensors=(0, 1, 2), numbers=(3,))
_BATCH_STATISTICS_BACKWARD = describing(
    "batch_statistics_backward", batch_statistics_backward, tensors=(0, 1, 2, 3, 4), numbers=(5,)
)

# In graphs without gradients ONNX's own normalisation is better.
GRADIENTS_ONLY = (aten.native_group_norm.default,)

RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: described_convolution_backward,
    aten.max_pool2d_with_indices_backward.default: describing(
        "max_pool_backward", max_pool_backward, tensors=(0, 1), numbers=()
    ),
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten._adaptive_avg_pool2d_backward.default: adaptive_avg_pool_backward,
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: max_pool_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.nll_loss_forward.default: nll_loss,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.native_group_norm.default: describing("group_norm", group_norm, tensors=(0, 1, 2), numbers=(6, 7)),
    aten.native_group_norm_backward.default: describing(
        "group_norm_backward", group_norm_backward, tensors=(0, 1, 2, 3, 4), numbers=(8,)
    ),
    aten.native_batch_norm_backward.default: describing(
        "batch_norm_backward", batch_norm_backward, tensors=(0, 1, 2, 3, 4), numbers=(8,)
    ),
    aten.threshold_backward.default: describing(
        "threshold_backward", threshold_backward, tensors=(0, 1), numbers=(2,)
    ),
    aten.hardtanh_backward.default: describing(
        "hardtanh_backward", hardtanh_backward, tensors=(0, 1), numbers=(2, 3)
    ),
    aten.select_backward.default: select_backward,
    aten.slice_backward.default: slice_backward,
    aten.embedding_dense_backward.default: embedding_backward,
}
