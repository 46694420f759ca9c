"""Sessions in ONNX Runtime's blocked layout, where the one at hand has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.graph_check import check_graph, delimited_field, number_field
from device_runtime.models.bundles.manifest import Graph
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.onnx_nodes import (
    GRAPH_INPUT,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_OPSET,
    write_node,
)
from device_runtime.models.engines.onnx_probe import encoded_input
from device_runtime.models.engines.onnx_session import (
    LoadedGraph,
    SessionSettings,
    engine_errors,
    load_session,
)
from device_runtime.models.errors import EngineError

from .layers import blocked_graph
from .operators import DOMAIN
from .rewriting import Shape

GRAPH_NAME, MODEL_IR, IR_VERSION, OPSET = 2, 1, 10, 20
WIDEST = 16
"""Channels of a block on processors with AVX-512; 8 on those with AVX2, and fewer elsewhere."""


def load_blocked(
    name: str,
    graph: Graph,
    onnx: bytes,
    tensors: tuple[Tensors, Mapping[str, Shape]],
    samples: int,
    settings: SessionSettings,
) -> LoadedGraph | None:
    """Opens a training graph in the blocked layout for exactly `samples` samples; None where it cannot be.

    tensors: the initialisers, and the shapes of x and of every tensor of the model. Raises BundleError,
    EngineError, and what the watch raises.
    """
    block = block_size()
    if not block:
        return None
    check_graph(onnx)
    initialisers, shapes = tensors
    blocked = blocked_graph(onnx, shapes, samples, block)
    if blocked is None:
        return None
    constants = {key: value for key, value in initialisers.items() if key in blocked.initialisers}
    return load_session(name, graph, blocked.onnx, constants, replace(settings, rewritten=True))


@cache
def block_size() -> int:
    """The number of channels of a block; 0 without a blocked layout, or if its results are wrong.

    The first call runs a model of three operators, which takes some milliseconds.
    """
    x = np.arange(WIDEST * 2, dtype=np.float32).reshape(1, WIDEST, 1, 2)
    kernel = np.zeros((WIDEST, WIDEST, 1, 1), np.float32)
    try:
        session = _probe()
        with engine_errors("the probe of the blocked layout"):
            blocked, _ = session.run(None, {"x": x, "w": kernel})
            block = next((size for size in (16, 8, 4) if np.array_equal(blocked, _in_blocks(x, size))), 0)
            if not block:
                return 0
            blocks = (WIDEST // block, block, WIDEST // block, block)
            doubling = (2 * np.eye(WIDEST, dtype=np.float32)).reshape(blocks).transpose(0, 2, 3, 1)
            _, doubled = session.run(None, {"x": x, "w": doubling.reshape(kernel.shape)})
    except EngineError:  # no such operators
        return 0
    return block if np.array_equal(doubled, 2 * x) else 0


def _in_blocks(x: NDArray[np.float32], block: int) -> NDArray[np.float32]:
    n, channels, height, width = x.shape
    blocks = x.reshape(n, channels // block, block, height * width)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 2)).reshape(x.shape)


def _probe() -> Any:
    """A session that gives x in blocks, and its convolution with a blocked kernel w as plain maps."""
    shape = (1, WIDEST, 1, 2)
    nodes = (
        write_node("ReorderInput", ["x"], ["blocked"], {}, DOMAIN),
        write_node("Conv", ["blocked", "w"], ["maps"], {"kernel_shape": (1, 1), "group": 1}, DOMAIN),
        write_node("ReorderOutput", ["maps"], ["plain"], {"channels": WIDEST}, DOMAIN),
    )
    graph = [delimited_field(GRAPH_NODE, node) for node in nodes]
    graph.append(delimited_field(GRAPH_NAME, b"graph"))
    kernel = encoded_input("w", (WIDEST, WIDEST, 1, 1))
    graph += [delimited_field(GRAPH_INPUT, value) for value in (encoded_input("x", shape), kernel)]
    graph += [delimited_field(GRAPH_OUTPUT, encoded_input(name, shape)) for name in ("blocked", "plain")]
    opsets = (
        delimited_field(1, domain.encode()) + number_field(2, v) for domain, v in (("", OPSET), (DOMAIN, 1))
    )
    model = number_field(MODEL_IR, IR_VERSION) + delimited_field(MODEL_GRAPH, b"".join(graph))
    model += b"".join(delimited_field(MODEL_OPSET, opset) for opset in opsets)
    named = Graph("", "", 0, (), 0, 0, 0)
    return load_session(
        "the blocked layout's probe", named, model, {}, SessionSettings(rewritten=True)
    ).session
