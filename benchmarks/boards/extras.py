"""What each extra adds to a device install: on disk, in time to import, in memory while it is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from . import wheel

REPEATS = 3
DEVICE = "import device_runtime.cli.on_device.join, onnxruntime"
"""What a device imports, before what an extra is for."""
_PROGRAM = (
    "import time, psutil; {before}; t, m = time.process_time(), psutil.Process().memory_info().rss; {after}; "
    "print(1e3 * (time.process_time() - t), (psutil.Process().memory_info().rss - m) / 1e6)"
)


@dataclass(frozen=True)
class Extra:
    """`imports`: what its packages are imported by. `also`: what pip does in a second step, its words."""

    name: str
    imports: str
    before: str = DEVICE
    also: Sequence[Sequence[str]] = ()


EXTRAS = (
    Extra("images", "import PIL.Image; PIL.Image.init()"),
    Extra("aggregator", "import amqtt.broker, cryptography.x509, rich.live, rpds, segno"),
    Extra("service", "import fastapi, prometheus_client, uvicorn"),
    Extra("postgres", "import psycopg"),
    Extra("privacy", "import dp_accounting"),
    Extra("simulation", "import matplotlib.pyplot, sklearn.datasets"),
    Extra("trackers", "import tensorboardX, wandb, mlflow; mlflow.MlflowClient"),
    Extra("ray", "import ray"),
    Extra("torch", "import torch, onnx, onnxscript"),
    Extra("networks", "import torch; from transformers import AutoModelForSequenceClassification"),
    Extra(
        "ort-training",
        "import onnxruntime",
        "import device_runtime.cli.on_device.join",
        (
            ("uninstall", "-y", "onnxruntime"),
            ("install", "--no-deps", "--force-reinstall", "onnxruntime-training-cpu==1.19.2"),
        ),
    ),
)


def table(folder: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """A row for each extra of these names, or for all; environments are made below `folder`, and kept."""
    own = wheel.built(folder / "wheel")
    plain = wheel.size(wheel.environment(folder / "device-runtime", own))
    rows: list[dict[str, str]] = []
    for extra in EXTRAS:
        if names and extra.name not in names:
            continue
        try:
            rows.append(_row(extra, own, plain, folder))
        except subprocess.CalledProcessError as error:
            rows.append({"extra": extra.name, "adds MB": f"cannot be installed: {error.cmd[-1]}"})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def installed(names: Sequence[str]) -> list[dict[str, str]]:
    """A row for each extra of these names, or for all, whose packages this environment has."""
    rows: list[dict[str, str]] = []
    for extra in EXTRAS:
        if not names or extra.name in names:
            with suppress(subprocess.CalledProcessError):
                rows.append({"extra": extra.name, **_costs(Path(sys.executable), extra)})
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _row(extra: Extra, own: Path, plain: int, folder: Path) -> dict[str, str]:
    programs = wheel.environment(folder / extra.name, f"{own}[{extra.name}]", then=extra.also)
    adds = f"{(wheel.size(programs) - plain) / 1e6:.0f}"
    return {"extra": extra.name, "adds MB": adds, **_costs(programs / "python", extra)}


def _costs(python: Path, extra: Extra) -> dict[str, str]:
    program = _PROGRAM.format(before=extra.before, after=extra.imports)
    costs = [_imported(python, program) for _ in range(REPEATS + 1)][1:]  # the first reads the disk
    ms, megabytes = (median(values) for values in zip(*costs, strict=True))
    return {"import, ms of processor": f"{ms:.0f}", "resident MB": f"{megabytes:.0f}"}


def _imported(python: Path, program: str) -> tuple[float, float]:
    """Milliseconds of the processor, and megabytes."""
    output = subprocess.check_output([python, "-I", "-c", program], text=True, stderr=subprocess.DEVNULL)
    ms, megabytes = output.splitlines()[-1].split()
    return float(ms), float(megabytes)
