"""Measures a mask helper: seconds on one core, peak memory, and bytes of its ledger.

    .venv/bin/python benchmarks/mask_helper.py                         # half a minute
    .venv/bin/python benchmarks/mask_helper.py --devices 1000 --values 10000000

Each row is a fresh process that has the list of seeds, checks it, opens the seeds, notes the set in its
ledger, adds the masks up and writes the answer. Seconds are of the processor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import msgspec
from nacl.bindings import crypto_scalarmult_base
from tabulate import tabulate

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.sum_messages import SumRequest, SumSeed
from device_runtime.mask_helper.ledger import FILE, Ledger
from device_runtime.mask_helper.summing import SumLimits, check_request, opened_set, sum_of_masks
from device_runtime.strategies.masking.seeds import MaskPurpose, seal

SECRET = b"\x11" * 32
DEVICES, VALUES, SUMS = (10, 100, 1000), 1_000_000, 2


def seeds(devices: int) -> bytes:
    """An encoded list of the seeds of so many devices, each for two helpers."""
    publics = (crypto_scalarmult_base(SECRET), crypto_scalarmult_base(b"\x22" * 32))
    entries = []
    for number in range(devices):
        name = f"device-{number:06d}"
        mask, _ = seal(os.urandom(32), publics, MaskPurpose("digits", "run-1", 1, "full", "", name, 2))
        entries.append(SumSeed(name, "", mask))
    return msgspec.msgpack.encode(tuple(entries))


def measured(folder: Path, values: int) -> dict[str, float]:
    """Seconds, megabytes and bytes for the list of seeds in this folder; to be called in a fresh process."""
    content = (folder / "seeds").read_bytes()
    limits = SumLimits(most_devices=10**7, most_numbers=values + SUMS)
    request = SumRequest(
        id=os.urandom(32), task="digits", run="run-1", round=1, kind="full", at=0, min_group=2,
        values=values, sums=SUMS, blob=blob_of(content),
    )  # fmt: skip
    ledger = Ledger(folder, lambda size: SECRET)
    before = memory_mb()
    moments = [time.process_time()]
    check_request(request, limits)
    request_set = opened_set(SECRET, request, content, limits)
    moments.append(time.process_time())
    ledger.record(request_set, 0)
    moments.append(time.process_time())
    total = sum_of_masks(request_set)
    moments.append(time.process_time())
    (folder / "answer").write_bytes(total.to_bytes())
    peak = memory_mb()
    ledger.close()
    opening, noting, adding = (end - start for start, end in pairwise(moments))
    size = (folder / FILE).stat().st_size
    return {"open": opening, "note": noting, "add": adding, "before": before, "peak": peak, "ledger": size}


def memory_mb() -> float:
    """The peak of this process's memory until now."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES)
    parser.add_argument("--values", type=int, default=VALUES)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.values)))
        return
    rows = []
    for devices in options.devices:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "seeds").write_bytes(seeds(devices))
            words = [sys.executable, __file__, "--measure", name, "--values", str(options.values)]
            run = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        total = sum(run[part] for part in ("open", "note", "add"))
        rows.append(
            [devices, options.values, f"{run['open']:.2f}", f"{run['note']:.2f}", f"{run['add']:.2f}",
             f"{total:.2f}", f"{run['before']:.0f}", f"{run['peak']:.0f}", int(run["ledger"] / devices)]
        )  # fmt: skip
    columns = (
        "devices",
        "values",
        "open s",
        "note s",
        "add s",
        "all s",
        "MB before",
        "MB peak",
        "ledger B/device",
    )
    print(f"$ .venv/bin/python benchmarks/mask_helper.py  # {multiprocessing.cpu_count()} cores, one used")
    print(tabulate(rows, columns))


if __name__ == "__main__":
    main()
