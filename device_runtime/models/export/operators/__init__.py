"""torch's operators as ONNX writes them; see torch_writer. Each takes the writer and the node."""

from typing import Any

from . import arithmetic, layers, shapes
from .arguments import Write

OPERATORS: dict[Any, Write] = {**shapes.OPERATORS, **arithmetic.OPERATORS, **layers.OPERATORS}
