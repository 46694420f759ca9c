"""The extras of an installation: the modules that each installs, and its purpose."""

from __future__ import annotations

from typing import NamedTuple


class Extra(NamedTuple):
    """`modules`: those that a command may miss. `purpose` follows "for". A device needs no extra."""

    modules: tuple[str, ...]
    purpose: str


EXTRAS = {
    "aggregator": Extra(
        ("rpds", "cryptography", "amqtt", "rich", "segno"),
        "`serve`, and a broker where Mosquitto is not installed",
    ),
    "service": Extra(("fastapi", "uvicorn", "prometheus_client"), "REST, metrics and pages of `serve`"),
    "postgres": Extra(("psycopg",), "runs in PostgreSQL"),
    "torch": Extra(("torch", "onnx", "onnxscript"), "`export`, and the torch engine"),
    "simulation": Extra(("sklearn", "matplotlib"), "`demo` and simulations"),
    "privacy": Extra(("dp_accounting",), "tasks whose training is differentially private"),
}
