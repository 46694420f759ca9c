"""What each codec makes of a full update of the shipped bundle: bytes, time, and what is learnt.

    .venv/bin/python benchmarks/codecs.py               # 3 seeds, 8 rounds, about 4 minutes
    .venv/bin/python benchmarks/codecs.py --seeds 0     # bytes and milliseconds alone
    pip install zstandard && .venv/bin/python benchmarks/codecs.py --seeds 0    # 24 MB: what zstd would make

Bytes and milliseconds (one thread) are medians over the updates of four devices in rounds 1, 4 and 7, each
decoded again and compared. Accuracy is that of the model served last by a simulated fleet of eight devices on
handwritten digits (Dirichlet 0.3), full updates alone: the mean over the seeds, and their standard deviation.
What does not change numbers (delta alone, deflate) learns the very same model and is not run again.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from statistics import mean, median, stdev
from typing import Any, TypeVar

import numpy as np
from tabulate import tabulate

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.simulation import digits
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.rounds.run import prepare, simulate
from device_runtime.simulation.scenarios import scenario
from device_runtime.strategies.codecs.chain import Chain, codec_named
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Run
from device_runtime.strategies.kinds.fedavg import FedAvg

BUNDLE = "digits-wrn-10-1"
WORDS = (
    "", "deflate", "delta+deflate", "half", "delta+half", "delta+half+deflate", "int8", "int8+deflate",
    "delta+int8", "delta+int8+deflate",
)  # fmt: skip
FULL = {"epochs": 2, "lr": 0.05, "momentum": 0.9}
DEVICES, SAMPLES, LOOKED_AT = 4, 150, (1, 4, 7)
T = TypeVar("T")


def updates() -> Iterator[tuple[Tensors, Tensors, tuple[TensorSpec, ...]]]:
    """(base, update, what it consists of) of full updates in three rounds of federated averaging."""
    bundle = Bundle.open(shipped_folder(BUNDLE))
    model, kind = OnnxModel(bundle), FedAvg(**FULL)
    split = digits.load(np.random.default_rng(0))
    x, y = bundle.manifest.input.prepare(split.train.x), split.train.y
    base, specs = bundle.weights(), kind.expected(bundle.manifest)
    for number in range(1, max(LOOKED_AT) + 1):
        sent = []
        for device in range(DEVICES):
            part = slice(device * SAMPLES, (device + 1) * SAMPLES)
            model.load(base)
            run = Run(number, f"{device}", lambda: 0.0, 1.0)
            sent.append(kind.train(model, LocalData(x[part], y[part]), run).tensors)
            if number in LOOKED_AT:
                yield base, sent[-1], specs
        base = base | {name: np.mean([each[name] for each in sent], axis=0) for name in sent[0]}


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds of processor time, the least of five, and what came of it."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        result = work()
        seconds.append(time.process_time() - began)
    return 1e3 * min(seconds), result


def sizes(codec: Chain, updates_: list[Any]) -> tuple[float, ...]:
    """Bytes, and milliseconds of encoding and decoding."""
    rows = []
    for base, update, specs in updates_:
        encoding_ms, encoded = timed(lambda b=base, u=update: codec.encode(u, b, NO_TENSORS))
        decoding_ms, read = timed(lambda b=base, e=encoded, s=specs: codec.decode(e.body, b, s))
        tensors.check(read, specs)
        expected = codec.rounded(update, base, NO_TENSORS).read
        assert all(np.array_equal(read[name], value) for name, value in expected.items())
        rows.append((len(encoded.body), encoding_ms, decoding_ms))
    return tuple(median(column) for column in zip(*rows, strict=True))


class Last(NullObserver):
    """The newest figures."""

    accuracy = 0.0

    def closed(self, line: SimulatedRound) -> None:
        self.accuracy = line.eval_acc


def accuracy(word: str, seed: int, rounds: int) -> float:
    """Of what the last round serves."""
    kind = {"name": "full", "settings": {**FULL, "codec": word}}
    tables = {
        "devices": 8,
        "data": {"partition": "dirichlet", "alpha": 0.3},
        "task": {"rounds": rounds, "round_deadline_s": 600.0, "kinds": [kind]},
    }
    last = Last()
    simulate(prepare(scenario.load("uniform", tables), seed), observer=last)
    return last.accuracy


def numbers_of(word: str) -> str:
    """The part of a word that numbers depend on."""
    word = word.removesuffix("deflate").removesuffix("+")
    return word if codec_named(word).lossy else ""


@cache
def learnt(word: str, seeds: int, rounds: int) -> str:
    accuracies = [100 * accuracy(word, seed, rounds) for seed in range(seeds)]
    if not accuracies:
        return ""
    return f"{mean(accuracies):.1f}%" + (f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else "")


def zstd_beside_zlib(updates_: list[Any]) -> str:
    """What both make of the same bytes."""
    import zstandard

    rows = []
    for word in ("", "delta", "delta+half", "delta+int8"):
        bodies = [codec_named(word).encode(update, base, NO_TENSORS).body for base, update, _ in updates_]
        packs = [partial(zlib.compress, level=6)]
        packs += [zstandard.ZstdCompressor(level=level).compress for level in (3, 10, 19)]
        packed = [f"{median(len(pack(body)) for body in bodies) / 1e3:.1f}" for pack in packs]
        rows.append([word or "(none)", f"{median(map(len, bodies)) / 1e3:.1f}", *packed])
    return tabulate(rows, headers=("codec", "kB", "zlib 6", "zstd 3", "zstd 10", "zstd 19"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of the simulated runs; 0: none")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    every = list(updates())
    whole = sizes(codec_named(""), every)[0]
    rows = []
    for word in WORDS:
        size, encoding_ms, decoding_ms = sizes(codec_named(word), every)
        rows.append(
            (
                word or "(none)",
                f"{size / 1e3:.1f}",
                f"{size / whole:.0%}",
                f"{encoding_ms:.1f}",
                f"{decoding_ms:.1f}",
                learnt(numbers_of(word), args.seeds, args.rounds),
            )
        )
    headers = ("codec", "kB", "of whole", "encode ms", "decode ms", f"accuracy after {args.rounds} rounds")
    print(tabulate(rows, headers=headers, disable_numparse=True))
    try:
        print("\n" + zstd_beside_zlib(every))
    except ImportError:
        print("\nzstandard is not installed, and is not needed: it is only compared here")


if __name__ == "__main__":
    main()
