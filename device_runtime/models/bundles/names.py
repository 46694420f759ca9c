"""Names of levels, tunable sets, precisions and engines; importing them needs no numpy and no engine."""

from dataclasses import dataclass

LEVELS = ("low", "mid", "up", "head")
LEVELS_OF = {"all": LEVELS, "mid": LEVELS[1:], "up": LEVELS[2:], "head": LEVELS[3:]}
"""The levels that each of these tunable sets trains: one level and all above it."""
TUNABLE_SETS = (*LEVELS_OF, "bias", "adapter", "prompt", "prefix", "lora", "sparse")
"""The sets of LEVELS_OF, then the parameter-efficient ones, each with the head."""

PRECISIONS = ("float32", "int8", "float16")
"""Precisions of the weights of forward graphs: forward, forward.int8 and forward.float16."""
TRAINING_PRECISIONS = ("float32", "tf32", "bf16")
"""The precisions in which torch trains; weights, gradients and losses stay float32.

tf32 rounds the factors of products to 10 bits of mantissa, on GPUs only. bf16 computes products and
activations in bfloat16.
"""
RUNNING_STATISTICS = (".running_mean", ".running_var")
"""Name endings of tensors that are running statistics of a normalisation, not parameters."""
SCALE = "scale"
"""Last part of the name of the head's tensor that multiplies the features."""

AUTO = "auto"
ENGINES = ("onnxruntime", "onnxruntime-training", "torch")
RUN_BYTES = 128 << 20
"""Bytes of live activations of one run, about; a batch with more is cut into several runs."""


@dataclass(frozen=True)
class EngineSettings:
    """The engine settings that a device's owner asks for.

    engine: one of ENGINES, or AUTO.
    precision: of forward passes on ONNX Runtime, see PRECISIONS; of training on torch, TRAINING_PRECISIONS.
    threads: the number of threads inside one operator.
    device: cpu, or cuda or cuda:N on engine torch.
    module: the source of the module (see `networks.own`) that engine torch runs for bundles that name no
    network; empty: none.
    loss: the source of the function that engine torch runs for bundles with a loss of one's own; empty: none.
    run_bytes: the most live activations of one run on ONNX Runtime, see Graph.rows.
    """

    engine: str = AUTO
    precision: str = "float32"
    threads: int = 1
    device: str = "cpu"
    run_bytes: int = RUN_BYTES
    module: str = ""
    loss: str = ""

    @property
    def for_torch(self) -> bool:
        """Whether engine torch alone can do what is asked for."""
        return self.own_code != () or self.device != "cpu" or self.precision in TRAINING_PRECISIONS[1:]

    @property
    def own_code(self) -> tuple[str, ...]:
        """The sources of the user's code that engine torch runs."""
        return tuple(source for source in (self.module, self.loss) if source)


DEFAULT_ENGINE_SETTINGS = EngineSettings()
