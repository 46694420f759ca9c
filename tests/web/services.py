"""`device-runtime serve --web` beside a test, and what it has written."""

import csv
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

KINDS = ("full", "entropy-subset", "few-shot", "zeroth-order", "class-means", "peft")


class Address:
    """Of the page, as `Visit` wants it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.origin = url.split("/join")[0]

    def shutdown(self) -> None:
        """It ends with its service."""


class Served:
    """A service with its page; `pages.url` is what browsers open."""

    def __init__(self, process: "Popen[bytes]", log: Path, run: Path, pages: Address) -> None:
        self.process, self.log, self.run, self.pages = process, log, run, pages

    def contributions(self) -> list[dict[str, Any]]:
        """Of all its tasks."""
        paths = sorted(self.run.rglob("contributions.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]

    def rounds(self) -> list[dict[str, str]]:
        with (self.run / "rounds.csv").open() as table:
            return list(csv.DictReader(table))


class Services:
    """`launched` and `eventually` are the fixtures; logs and runs go to `folder`."""

    def __init__(self, launched: Callable[..., Any], eventually: Callable[..., Any], folder: Path) -> None:
        self._launched, self._eventually, self._folder = launched, eventually, folder

    @contextmanager
    def __call__(self, *arguments: object, name: str = "run", port: int = 0) -> Iterator[Served]:
        """Start one, of the run of this name, at this port of HTTP; 0: any."""
        log, run = self._folder / f"{name}.log", self._folder / name
        where = ("--http", f"127.0.0.1:{port}", "--web", "--run-dir", run)
        with self._launched(log, "serve", *arguments, *where) as process:
            offered = re.compile(r"browsers join at (\S+)")
            self._eventually(lambda: process.poll() or offered.search(log.read_text()))
            match = offered.search(log.read_text())
            assert match, log.read_text()
            yield Served(process, log, run, Address(match[1] + "page/"))


def task(path: Path, rounds: int, kind: str = "full", **settings: object) -> Path:
    """The file of a task of one kind."""
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in settings.items())
    kinds = f"kinds = [{{ name = '{kind}', settings = {{ {text} }} }}]"
    path.write_text(f"bundle = 'digits-wrn-10-1'\nrounds = {rounds}\nround_deadline_s = 120\n{kinds}\n")
    return path


def one_of_each(folder: Path) -> list[Path]:
    """Files of tasks, a round of each kind."""
    parts: dict[str, dict[str, object]] = {"peft": {"tunable": "head"}}
    return [
        task(folder / f"{number}-{kind}.toml", 1, kind, **parts.get(kind, {}))
        for number, kind in enumerate(KINDS)
    ]
