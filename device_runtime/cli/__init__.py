"""The command `device-runtime`: imports only the command that is called, and none to list them."""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from device_runtime.console import flush_output, log_to_stderr, make_streams_usable, output_failed
from device_runtime.extras import extra_needed
from device_runtime.machine_readings import fit_thread_pools
from device_runtime.system_errors import disk_reason, shortage

from .table import COMMANDS, Command, extra_for, missing_extra, overview

OTHER_WORDS = {"uninstall": "leave", "remove": "leave", "enrol": "join", "start": "join", "stop": "pause"}
"""Commands that people look for by another name."""

log = logging.getLogger(__name__)

PROGRAM = "device-runtime"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 for success, 2 for a printed error, 130 for Ctrl-C.

    A command's module may give other codes to its errors, by `exit_code(error)`.
    """
    make_streams_usable()
    fit_thread_pools()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _command(words[0] if words else "--help", words[1:])
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        if output_failed(error):  # a reader such as `head` has ended, or the disk is full
            code = 0 if isinstance(error, BrokenPipeError) else 2
        elif lack := shortage(error):
            code = _fail(lack, 2)
        else:
            raise
    return _written(code)


def _command(name: str, words: Sequence[str]) -> int:
    if words and f"{name}-{words[0]}" in COMMANDS:  # `serve init`
        name, words = f"{name}-{words[0]}", words[1:]
    if name in COMMANDS:
        return _run(name, words)
    if name in ("-h", "--help"):
        print(overview(shutil.get_terminal_size().columns))
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(version(PROGRAM))
        return 0
    hint = _nearest(OTHER_WORDS.get(name, name), COMMANDS).replace(";", ":") or ":"
    return _fail(f"there is no command {name!r}{hint} `{PROGRAM} --help` lists them all", 2)


def _written(code: int) -> int:
    """The exit code, once the output is written: 2 where it cannot be, as to a full disk."""
    failure = flush_output()
    if failure is None or isinstance(failure, BrokenPipeError):  # a reader such as `head` has ended
        return 0 if failure else code
    return _fail(f"the output cannot be written: {disk_reason(failure)}", code or 2)


def _run(name: str, words: Sequence[str]) -> int:
    command = COMMANDS[name]
    if {"-h", "--help"} & set(words) and missing_extra(command):
        from .absent_extras import standing_in

        parser = _parser(name, command)
        with standing_in():
            import_module(command.module).add_arguments(parser)
            parser.parse_args(words)
    errors: tuple[type[Exception], ...] = ()
    code: Callable[[Exception], int] = _refused
    try:
        module = import_module(command.module)
        errors = getattr(module, "ERRORS", ())
        code = getattr(module, "exit_code", _refused)
        parser = _parser(name, command)
        module.add_arguments(parser)
        options = parse(parser, words)
        log_to_stderr()
        _warn_of_visible_secrets(words)
        return int(module.run(options))
    except ModuleNotFoundError as error:
        extra = extra_for(command, error.name or "")
        if extra is None:
            raise
        return _fail(extra_needed(name, extra, error.name), code(error))
    except Exception as error:
        if output_failed(error):
            raise
        if isinstance(error, (*_expected(), *errors)):
            return _fail(str(error), code(error))
        if lack := shortage(error):  # of memory, threads, room on the disk; or a file that was named
            return _fail(lack, code(error))
        from device_runtime.strategies.plugins import place_of

        if place := place_of(error):
            return _fail(f"{place}: {type(error).__name__}: {error}", 2)
        raise


def _expected() -> tuple[type[Exception], ...]:
    """Errors with a text for people; a command's module may add its own as `ERRORS`."""
    from device_runtime.broker.errors import BrokerError
    from device_runtime.device.errors import DeviceError
    from device_runtime.models.errors import ModelError
    from device_runtime.profiles import ProfileError
    from device_runtime.strategies.errors import KindError
    from device_runtime.user_account import NoHome

    return (BrokerError, ModelError, ProfileError, KindError, DeviceError, NoHome)


def _parser(name: str, command: Command) -> argparse.ArgumentParser:
    lacking = missing_extra(command)
    needs = f"Needs: pip install 'device-runtime[{lacking}]'\n" if lacking else ""
    return _Parser(
        prog=f"{PROGRAM} {name}",
        description=command.help,
        epilog=f"{needs}Example: {command.example}",
        formatter_class=_WithExample,
    )


_WITH_PASSWORD = re.compile(r"(?:^|=)(?:mqtts?|wss?)://[^/@\s:]*:[^/@\s]+@")
_TOKEN = re.compile(r"(?:^|=)fl1\.")


def _warn_of_visible_secrets(words: Sequence[str]) -> None:
    """Warn of passwords and tokens on the command line, which `ps` shows to everybody on this machine."""
    visible = "everybody on this machine can see the %s on this command line, and the shell keeps it: %s"
    meter = any(word.startswith("--meter") and "=" in word for word in words) or "--meter" in words
    if any(map(_WITH_PASSWORD.search, words)):
        instead = "leave it out of the URL, and give --password-file FILE or DEVICE_RUNTIME_PASSWORD"
        log.warning(visible, "password", instead + ("; of a meter, in a file for --config" if meter else ""))
    if any(map(_TOKEN.search, words)):
        log.warning(visible, "token", "--enrol - reads it from stdin")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parses the words; `flag_names` of the result holds the names of the options that they set."""
    options = parser.parse_args(words)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    options.flag_names = frozenset(vars(parser.parse_args(words)))
    return options


class _Parser(argparse.ArgumentParser):
    """Takes whole names of options only, and names the nearest to one that does not exist."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        if (unknown := re.match("unrecognized arguments: (--[^= ]+)", message)) is not None:
            message += _nearest(unknown[1], self._option_string_actions)
        super().error(message)


class _WithExample(argparse.HelpFormatter):
    """Keeps the example on one line, so that it can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "Example: " in text:
            return text
        return super()._fill_text(text, width, indent)


def _nearest(word: str, words: Iterable[str]) -> str:
    """The question "; did you mean ..?" with the word that is most like it; empty if none is."""
    from difflib import get_close_matches  # 0.15 MB, which an idle device does without

    near = get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _refused(_error: Exception) -> int:
    return 2


def _fail(text: str, code: int) -> int:
    with suppress(OSError):  # standard error may be a file on a full disk
        print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)
    return code
