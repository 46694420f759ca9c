"""Engines and precisions that a device may ask for, by name; without numpy or an engine."""

from dataclasses import dataclass

LEVELS = ("low", "mid", "up", "head")


LEVELS_OF = {"all": LEVELS, "mid": LEVELS[1:], "up": LEVELS[2:], "head": LEVELS[3:]}


TUNABLE_SETS = (*LEVELS_OF, "bias", "adapter", "prompt", "prefix", "lora", "sparse")
"""A level and what is above it (low and above is all); then the parameter-efficient ones, with the head."""


PRECISIONS = ("float32", "int8", "float16")
"""Of the weights of forward graphs: forward, forward.int8 and forward.float16."""


SCALE = "scale"
"""How the tensor of a head is called that multiplies the features before it."""


RUN_BYTES = 64 << 20
"""Live activations of one run, about: more samples than that are several runs."""


AUTO = "auto"


ENGINES = ("onnxruntime", "onnxruntime-training", "torch")


@dataclass(frozen=True)
class EngineWish:
    """What a device's owner asks for.

    engine: one of ENGINES, or AUTO. precision: of forward passes, see PRECISIONS. device: cpu, and on engine
    torch cuda or cuda:N. run_bytes: live activations of one run on ONNX Runtime, at most; see Graph.rows.
    """

    engine: str = AUTO
    precision: str = "float32"
    threads: int = 1
    device: str = "cpu"
    run_bytes: int = RUN_BYTES


NO_WISH = EngineWish()
