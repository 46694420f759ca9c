"""Reads a command's options from a TOML file (`join --config FILE`); the command line wins."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from device_runtime.content import no_such_key, read_toml
from device_runtime.device.errors import PolicyError
from device_runtime.user_account import expanded

POLICY = "policy"
"""The table of the owner's rules; all other settings stand above it."""
ONCE = ("config", "enrol", "service", "system")
"""Options that are not settings."""


def fill(options: argparse.Namespace, parser: argparse.ArgumentParser, rules: frozenset[str]) -> None:
    """Set the options that `options.config` has and the command line (`options.flag_names`) has not.

    Keys are the long options of `parser`, without leading dashes; those in `rules` stand in [policy]. Paths
    are relative to the file. Raises PolicyError with the file and the key.
    """
    path: Path = options.config
    actions = _actions(parser)
    for name, value in read(path):
        table, _, key = name.rpartition(".")
        option = key.replace("-", "_")
        action = actions.get(option)
        if action is None or (option in rules) != (table == POLICY):
            keys = sorted(entry for entry in actions if (entry in rules) == (table == POLICY))
            raise PolicyError(f"{path}: {no_such_key(name, keys)}")
        if action.dest not in options.flag_names:
            setattr(options, action.dest, _option_value(path, name, action, value))


def text(options: argparse.Namespace, parser: argparse.ArgumentParser, rules: frozenset[str]) -> str:
    """A file with these options, without those at their default; paths are absolute.

    Options that are used only once, as an enrolment, are left out.
    """
    settings = {
        key: getattr(options, action.dest)
        for key, action in _actions(parser).items()
        if getattr(options, action.dest) != action.default
    }
    lines = [f"{key} = {_written(value)}" for key, value in settings.items() if key not in rules]
    lines += ["", f"[{POLICY}]"]
    lines += [f"{key} = {_written(value)}" for key, value in settings.items() if key in rules]
    return "\n".join([*lines, ""])


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The parser's actions by key; `--keep-model` and `--no-keep-model` have one key, `keep_model`."""
    actions = {}
    for action in parser._actions:
        if action.dest not in (*ONCE, "help"):
            names = [name for name in action.option_strings if not name.startswith("--no-")]
            name = max(names, key=len, default=action.dest)
            actions[name.lstrip("-").replace("-", "_")] = action
    return actions


def _written(value: object) -> str:
    """As TOML, which writes strings and numbers as JSON does."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, Path):
        value = value.absolute()
    return json.dumps(str(value), ensure_ascii=False)


def read(path: Path) -> Iterator[tuple[str, object]]:
    """Keys and values; those of the table as "policy.key". Raises PolicyError."""
    settings = read_toml(path, PolicyError)
    rules = settings.pop(POLICY, {})
    if not isinstance(rules, dict):
        raise PolicyError(f"{path}: {POLICY}: expected a table, [{POLICY}]")
    yield from settings.items()
    for key, value in rules.items():
        yield f"{POLICY}.{key}", value


def _option_value(file: Path, name: str, action: argparse.Action, value: object) -> object:
    """A value as the command line's option would give it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise PolicyError(f"{file}: {name}: expected true or false, not {value!r}")
        return value
    if isinstance(action, argparse._AppendAction):
        if not isinstance(value, list):
            raise PolicyError(f"{file}: {name}: expected a list, not {value!r}")
        return [_single_value(file, name, action, each) for each in value]
    return _single_value(file, name, action, value)


def _single_value(file: Path, name: str, action: argparse.Action, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PolicyError(f"{file}: {name}: expected {_value_name(action)}, not {value!r}")
    text = str(value)
    if action.type is Path:
        return file.parent / expanded(text)
    if action.dest == "plugins" and ".py:" in text:
        return str(file.parent / expanded(text))
    try:
        setting = action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise PolicyError(f"{file}: {name}: {error}") from None
    if action.choices is not None and setting not in action.choices:
        raise PolicyError(
            f"{file}: {name}: expected one of {', '.join(map(str, action.choices))}, not {text!r}"
        )
    return setting


def _value_name(action: argparse.Action) -> str:
    return str(action.metavar or "a text or a number").lower()
