"""Random and mutated bytes for every reader: none may crash, hang, or take memory as it likes.

    .venv/bin/python benchmarks/fuzz.py                       # a million inputs, about a quarter of an hour
    .venv/bin/python benchmarks/fuzz.py --inputs 20000        # a look
    .venv/bin/python benchmarks/fuzz.py --only manifest --seed 7
    .venv/bin/python benchmarks/fuzz.py --only graph          # a million graphs, changed field by field

Each decoder may raise its own error and nothing else. An input is random bytes, or a sound one with bits
flipped, bytes put in, taken out, doubled or cut. Graphs are changed field by field, and what the examiner
passes must name no file and hold no other graph (graph_mutations.py). What fails is written into --keep as it
was. Ends with 1 if anything did. `slowest` is one input; `memory` is how much the process grew while it
decoded all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).parent.parent)  # where benchmarks is a package

import numpy as np
import psutil
from tabulate import tabulate

from benchmarks.fuzz_samples import sample_targets
from benchmarks.fuzz_settings import setting_targets
from benchmarks.fuzz_target import Target, mutated
from benchmarks.graph_mutations import Graphs, examined
from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks import task as tasks
from device_runtime.broker.errors import BrokerError, UrlError
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.messages import (
    Blob,
    Contribution,
    Get,
    Hello,
    Message,
    Metrics,
    Plan,
    Receipt,
    State,
)
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.models.bundles import archive, manifest, tensors
from device_runtime.models.bundles.bundle import shipped_folder
from device_runtime.models.errors import ModelError

SLOWEST_S = 2.0
"""Seconds that one input may take."""
GROWTH_BYTES = 300 << 20
"""Bytes by which the process may grow."""
ADDRESS_SPACE = 8 << 30
"""Bytes that it may map at all: what asks for more gets a MemoryError, which is a failure here."""


@dataclass
class Outcome:
    inputs: int = 0
    refused: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    growth: int = 0
    first: str = ""


def text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: decode(data.decode("utf-8", "surrogateescape"))


def message_of(kind: type[Message]) -> Callable[[bytes], object]:
    return lambda data: messages.decode(data, kind)


def targets() -> list[Target]:
    metrics = Metrics(0.5, 1500, 2000, 1024)
    blob = Blob(bytes(range(32)), 313_000)
    who = {"task": "t", "run": "r", "round": 3}
    update = tensors.encode(
        {"g": np.array([0.5, -0.25], np.float32), "head.weight": np.ones((10, 64), np.float32)}
    )
    contribution = Contribution(
        **who, boot=1, seq=2, kind="full", num_examples=9, metrics=metrics, body=update
    )
    sound: list[Message] = [
        State(boot=7, online=True),
        Hello(boot=7, num_examples=20, profile="pi", memory_bytes=2**30, engine="onnx"),
        Plan(task="t", round=3, kind="full", seconds=1.5, memory_bytes=1, energy_j=2.0, reasons=("a", "b")),
        contribution,
        Receipt(boot=7, seq=2, round=3, status="refused", reason="no"),
        Get(blob=blob, blocks=(0, 1, 2)),
    ]
    folder = {"a.txt": b"x" * 300, "manifest.json": b"{}" * 50}
    written = (shipped_folder("digits-wrn-10-1") / "manifest.json").read_bytes()
    task = tasks.Task(bundle="b", name="t").json()
    shas = "0" * 64
    graphs = Graphs()
    return [
        Target("graph", examined, (ModelError,), graphs.sound, 1.0, graphs.mutated),
        *(
            Target(
                type(message).__name__, message_of(type(message)), (BrokerError,), (messages.encode(message),)
            )
            for message in sound
        ),
        Target(
            "topic",
            text(topics.parse),
            (BrokerError,),
            (f"fl/v1/d/pi-1/up/block/{shas}/17".encode(), b"fl/v1/d/a/dn/task"),
        ),
        Target("safetensors", tensors.decode, (ModelError,), (update,)),
        Target("manifest", manifest.decode, (ModelError,), (written,), 0.2),
        Target(
            "bundle zip",
            archive.read_zip,
            (ModelError,),
            (archive.pack_files(folder), _deflated(folder)),
            0.5,
        ),
        Target("task", tasks.decode, (TaskError,), (task, json.dumps(json.loads(task), indent=1).encode())),
        Target(
            "url",
            text(lambda url: BrokerUrl.parse(url, None, True)),
            (UrlError,),
            (b"mqtts://pi:p%40ss@host.example:8883", b"mqtt://[::1]:1883?mqtt=5"),
        ),
        *sample_targets(),
        *setting_targets(),
    ]


def _deflated(files: dict[str, bytes]) -> bytes:
    import io
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return out.getvalue()


def fuzz(target: Target, inputs: int, seed: int, keep: Path | None = None) -> Outcome:
    """Feed it. Whatever it raises beside its own errors is counted as a failure."""
    draw = random.Random(f"{seed}:{target.name}")  # noqa: S311 - inputs
    outcome, process = Outcome(), psutil.Process()
    for example in target.sound:
        target.decode(example)  # they are sound
    before, started = process.memory_info().rss, time.perf_counter()
    for number in range(inputs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as of two members of one name
            data = (target.mutate or mutated)(draw, target.sound)
        begun, problem = time.perf_counter(), ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.decode(data)
        except target.errors:
            outcome.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            problem = f"{type(error).__name__}: {str(error)[:200]}"
        took = time.perf_counter() - begun
        outcome.slowest_s = max(outcome.slowest_s, took)
        if took > SLOWEST_S:
            problem = problem or f"took {took:.1f} s"
        if problem:
            outcome.failed += 1
            outcome.first = outcome.first or f"input {number}: {problem}"
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{target.name.replace(' ', '-')}-{number}").write_bytes(data)
    outcome.inputs, outcome.seconds = inputs, time.perf_counter() - started
    outcome.growth = max(0, process.memory_info().rss - before)
    if outcome.growth > GROWTH_BYTES:
        outcome.failed += 1
        outcome.first = outcome.first or f"grew by {outcome.growth >> 20} MB"
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all (default: a million)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="NAME", help="one decoder")
    parser.add_argument("--keep", type=Path, help="folder for inputs that failed")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    chosen = [decoder for decoder in targets() if options.only in (None, decoder.name)]
    if not chosen:
        parser.error(
            f"there is no decoder {options.only!r}; there are {', '.join(each.name for each in targets())}"
        )
    whole, rows, failed = sum(decoder.share for decoder in chosen), [], 0
    for target in chosen:
        inputs = max(1, round(options.inputs * target.share / whole))
        print(f"{target.name}: {inputs:,} inputs ...", file=sys.stderr, flush=True)
        came = fuzz(target, inputs, options.seed, options.keep)
        failed += came.failed
        rows.append(
            (
                target.name,
                f"{came.inputs:,}",
                f"{came.refused:,}",
                came.failed,
                f"{1e3 * came.slowest_s:.1f} ms",
                f"{came.growth / 1e6:.0f} MB",
                f"{came.seconds:.0f} s",
                came.first,
            )
        )
    print(tabulate(rows, ("decoder", "inputs", "refused", "failed", "slowest", "memory", "took", "")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
