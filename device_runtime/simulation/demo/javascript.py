"""Devices in JavaScript: the browser's modules (web/), run by Node."""

from __future__ import annotations

import shutil

from device_runtime.aggregator.errors import MissingExtra
from device_runtime.content import content

WEB = content("web")
RUNS = WEB / "node" / "run.js"
NEEDED = (WEB / "vendor" / "ort" / "ort-wasm-simd-threaded.wasm", WEB / "node_modules" / "mqtt")
FLAGS = ("--liftoff-only",)
"""WASM is compiled once, quickly: half the memory and a fraction of the processor time to begin with; steps
take longer."""


def command() -> tuple[str, ...]:
    """The words that start one, without its options. Raises MissingExtra."""
    node = shutil.which("node")
    if node is None:
        raise MissingExtra("devices in JavaScript need Node.js 20 or newer: node is not installed")
    if not RUNS.is_file():
        raise MissingExtra(f"devices in JavaScript need a checkout of the project: {RUNS} is not there")
    for path in NEEDED:
        if not path.exists():
            raise MissingExtra(
                f"devices in JavaScript need their libraries: {path} is missing; run `make web`"
            )
    return (node, *FLAGS, str(RUNS))
