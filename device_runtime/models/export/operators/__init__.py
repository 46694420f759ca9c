"""Functions that write torch's operators as ONNX; each takes a `writer.Writer` and the node."""

from typing import Any

from . import arithmetic, shapes
from .writer import Write

OPERATORS: dict[Any, Write] = {**shapes.OPERATORS, **arithmetic.OPERATORS, **shapes.LAYER_OPERATORS}
