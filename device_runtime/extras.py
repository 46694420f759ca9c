"""The extras of an installation: the modules that each installs, and its purpose."""

from __future__ import annotations

from typing import NamedTuple


class InstallExtra(NamedTuple):
    """What an extra is for, and the modules that it installs; a device needs none of them."""

    modules: tuple[str, ...]
    purpose: str


def extra_needed(what: str, extra: str, module: str | None) -> str:
    """Says that something needs an extra of this installation: a module that it lacks is not imported.

    extra: its name, or several with commas between.
    """
    where = f" ({module} is not installed)" if module else ""
    return f"{what} needs the extra {extra}: pip install 'device-runtime[{extra}]'{where}"


EXTRAS = {
    "aggregator": InstallExtra(
        ("rpds", "cryptography", "amqtt", "rich", "segno"),
        "`serve`, and a broker where Mosquitto is not installed",
    ),
    "service": InstallExtra(("fastapi", "uvicorn", "prometheus_client"), "REST, metrics, pages of `serve`"),
    "postgres": InstallExtra(("psycopg",), "runs in PostgreSQL"),
    "torch": InstallExtra(("torch", "onnx", "onnxscript"), "`export`, and the torch engine"),
    "simulation": InstallExtra(("sklearn", "matplotlib"), "`demo` and simulations"),
    "images": InstallExtra(("PIL",), "GIF, WebP and TIFF among samples"),
    "parquet": InstallExtra(("arro3",), "Parquet tables among samples"),
    "privacy": InstallExtra(("dp_accounting",), "tasks whose training is differentially private"),
}
