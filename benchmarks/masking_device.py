"""Measures a masked update on a device beside the same update in the clear: bytes, milliseconds, memory.

    .venv/bin/python benchmarks/masking_device.py                   # updates of 1,000 and 1,000,000 values
    .venv/bin/python benchmarks/masking_device.py --cache bundles   # and beside an epoch of 100 samples
    .venv/bin/python benchmarks/masking_device.py --chromium        # in a browser, for one helper

`bytes` are those of the content and of the mask. `ms` is the least of the repeats, from the trained update to
the bytes that are sent: of processor time, on one thread. `peak MB` is the most that is held meanwhile beyond
the update and its base, by tracemalloc, with the bytes that are sent. An epoch (with torch, which exports the
network) is that of a full update of SqueezeNet with 100 pictures of 64x64 in batches of 32. In Chromium `ms`
are of time: the first, and the median of 14 others. `peak MB` is then of the page's process.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import msgspec
import numpy as np
from nacl.bindings import crypto_scalarmult_base
from tabulate import tabulate

from device_runtime.broker.wire.messages import Base, Blob, HelperKey, Masks, Offer
from device_runtime.device.masking.masked_update import SECRET_BYTES, UpdateMasker
from device_runtime.device.training.one_task import RoundInputs
from device_runtime.models.bundles.bundle import Bundle, shipped_folder
from device_runtime.models.bundles.manifest import Manifest, Parameter
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.codecs.chain import codec_named
from device_runtime.strategies.interface.device_half import NO_TENSORS, LocalData, Run, Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg

SIZES = (1_000, 1_000_000)
TENSORS = 10
SAMPLES = 100
NETWORK = "squeezenet"
HEADERS = ("values", "update", "bytes", "ms", "peak MB")


def offer_of(helpers: int) -> Offer:
    """An offer of full updates, masked for so many helpers."""
    keys = tuple(
        HelperKey(f"helper-{n}", crypto_scalarmult_base(bytes([n + 1]) * SECRET_BYTES))
        for n in range(helpers)
    )
    blob = Blob(sha=bytes(32), size=1)
    return Offer(
        task="t", run="r", round=1, seed=1, deadline_s=60.0, remaining_s=60.0, bundle=blob,
        base=Base(checkpoint=(blob,), sha=blob.sha), kinds=(registry.write(FedAvg()),),
        masks=Masks(helpers=keys, min_group=3, capacity=1024, most_weight=1000),
    )  # fmt: skip


def made_up(values: int) -> tuple[Manifest, Tensors, Update]:
    """A network of so many values in TENSORS tensors, its base, and an update: a small random change."""
    rng, size = np.random.default_rng(1), values // TENSORS
    parameters = tuple(Parameter(f"layer-{n}", (size,), "float32", "up", ("all",)) for n in range(TENSORS))
    manifest = Bundle.open(shipped_folder("digits-wrn-10-1")).manifest
    manifest = msgspec.structs.replace(manifest, parameters=parameters)
    base = {parameter.name: rng.normal(0, 0.1, size).astype(np.float32) for parameter in parameters}
    new = {name: (w + rng.normal(0, 0.01, size)).astype(np.float32) for name, w in base.items()}
    return manifest, base, Update("full", new, SAMPLES, 0.5)


def ways(manifest: Manifest, base: Tensors, update: Update) -> Iterator[tuple[str, Callable[[], int]]]:
    """How the update can be made ready to send; each gives its bytes."""

    def clear() -> int:
        return len(codec_named("").encode(update.tensors, base, NO_TENSORS).body)

    yield "in the clear", clear
    for helpers in (1, 2, 3):
        inputs = RoundInputs(offer_of(helpers), "", base, NO_TENSORS)

        def hidden(round_inputs: RoundInputs = inputs) -> int:
            masker = UpdateMasker(round_inputs.offer, "pi-1", os.urandom(SECRET_BYTES))
            sent = masker.masked(update, manifest, round_inputs.base)
            return len(sent.body) + len(sent.mask.key) + sum(map(len, sent.mask.tags))

        yield f"masked, {helpers} helper{'s' if helpers > 1 else ''}", hidden


def least_ms(work: Callable[[], object], repeats: int) -> float:
    least = inf
    for _ in range(repeats):
        began = time.process_time()
        work()
        least = min(least, 1e3 * (time.process_time() - began))
    return least


def peak_mb(work: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def device(repeats: int) -> Iterator[tuple[Any, ...]]:
    """The rows of updates of SIZES values."""
    for values in SIZES:
        for how, work in ways(*made_up(values)):
            size = work()
            yield f"{values:,}", how, f"{size:,}", f"{least_ms(work, repeats):.2f}", f"{peak_mb(work):.2f}"


def epoch(cache: Path, repeats: int) -> Iterator[tuple[Any, ...]]:
    """The rows of an epoch, and of what masks add to it."""
    from engines import NETWORKS, exported

    from device_runtime.models.available_engines.onnx_engine import OnnxModel

    bundle, kind = Bundle.open(exported(NETWORK, cache)), FedAvg(epochs=1, lr=0.001)
    rng, model = np.random.default_rng(1), OnnxModel(bundle, threads=1)
    x = rng.standard_normal((SAMPLES, *NETWORKS[NETWORK].input.shape), np.float32)
    data = LocalData(x, rng.integers(10, size=SAMPLES))
    run = Run(1, "pi-1", clock=lambda: 0.0, upload_at=inf)
    update = kind.train(model, data, run)
    whole = least_ms(lambda: kind.train(model, data, run), 3)
    values = f"{sum(value.size for value in update.tensors.values()):,}"
    yield values, f"an epoch of {SAMPLES} samples", "", f"{whole:.0f}", ""
    for how, work in ways(bundle.manifest, bundle.weights(), update):
        took = least_ms(work, repeats)
        yield values, how, f"{work():,}", f"{took:.2f}: {took / whole:.2%}", f"{peak_mb(work):.2f}"


def chromium() -> Iterator[tuple[Any, ...]]:
    """The rows of updates of SIZES values in a browser, each in a page of its own."""
    from browser import isolated_page, renderers

    for values in SIZES:
        with isolated_page((), {}) as page:
            page.evaluate("async () => { globalThis.m = await import('/benchmarks/masked_updates.js') }")
            [process] = [renderer for renderer in renderers() if "--type=renderer" in renderer.cmdline()]
            before = process.memory_info().rss
            parts = page.evaluate("values => m.timed(values)", values)
            peak = f"{(_most_bytes(process.pid) - before) / 1e6:.0f}"
            for part, first, later in parts:
                yield f"{values:,}", part, "", f"{first:.2f}, then {later:.2f}", peak


def _most_bytes(pid: int) -> int:
    """The most memory that a process has had (Linux)."""
    [line] = [
        text for text in Path(f"/proc/{pid}/status").read_text().splitlines() if text.startswith("VmHWM")
    ]
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cache", type=Path, help="folder of exported networks; also time an epoch")
    parser.add_argument("--chromium", action="store_true", help="measure the browser's modules instead")
    options = parser.parse_args()
    if options.chromium:
        rows = [*chromium()]
    else:
        rows = [*device(options.repeats), *(epoch(options.cache, options.repeats) if options.cache else ())]
    print(tabulate(rows, headers=HEADERS, disable_numparse=True))


if __name__ == "__main__":
    main()
