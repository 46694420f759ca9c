"""The command `device-runtime`. Subcommands come by entry point, and only the one called for is imported."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from types import ModuleType

from broker.errors import BrokerError
from models.errors import ModelError
from profiles import ProfileError
from strategies.errors import KindError

from .errors import DeviceError

GROUP = "device_runtime.commands"
OURS = ("device_runtime", "broker", "strategies", "models", "profiles", "aggregator", "simulation", "edge")
EXPECTED = (BrokerError, ModelError, ProfileError, KindError, DeviceError)
"""Errors with a text for people; a command's module may add its own as `ERRORS`."""
EXTRAS = {
    "amqtt": "aggregator",
    "cryptography": "aggregator",
    "segno": "aggregator",
    "rich": "aggregator",
    "rpds": "aggregator",
    "torch": "torch",
    "onnx": "torch",
    "onnxscript": "torch",
    "sklearn": "simulation",
    "matplotlib": "simulation",
    "fastapi": "service",
    "uvicorn": "service",
    "prometheus_client": "service",
    "psycopg": "postgres",
}
"""Which extra brings a module that a command may miss."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand. Exit code 0: it did its work; 2: it said why it could not; 130: Ctrl-C.

    A command's module may say more exactly why, by `exit_code(error)`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {point.name: point for point in metadata.entry_points(group=GROUP)}
    name = given[0] if given and given[0] in commands else ""
    parser = argparse.ArgumentParser(
        prog="device-runtime",
        description="On-device training for federated learning that leaves no device behind.",
        epilog="`device-runtime COMMAND --help` says more, with an example.",
    )
    parser.add_argument("--version", action="version", version=metadata.version("device-runtime"))
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    expected: tuple[type[Exception], ...] = EXPECTED
    code: Callable[[Exception], int] = _refused
    try:
        for point in [commands[name]] if name else sorted(commands.values(), key=lambda p: p.name):
            module: ModuleType = point.load()
            expected = (*expected, *getattr(module, "ERRORS", ()))
            code = getattr(module, "exit_code", _refused)
            _add(subparsers, point.name, module)
        options = parser.parse_args(given)
        log_to_stderr()
        return int(options.run(options))
    except expected as error:
        return _fail(str(error), code(error))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        return _fail(f"{name} needs {error.name}: pip install 'device-runtime[{extra}]'", code(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def log_to_stderr() -> None:
    """What our own packages have to say, and the warnings of others."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for package in OURS:
        logging.getLogger(package).setLevel(logging.INFO)


def _add(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: ModuleType
) -> None:
    parser = subparsers.add_parser(
        name,
        help=module.HELP,
        description=module.HELP,
        epilog=f"Example: {module.EXAMPLE}",
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)


def _refused(_error: Exception) -> int:
    return 2


def _fail(text: str, code: int) -> int:
    print(f"device-runtime: {' '.join(text.split())}", file=sys.stderr)
    return code
