"""`device-runtime web fetch`: fetches the libraries of the page by which browsers join, from npm."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from device_runtime.aggregator.errors import AggregatorError, MissingExtra
from device_runtime.content import IN_CHECKOUT
from device_runtime.extras import extra_needed

ERRORS = (AggregatorError,)

NPM = ("npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
"""Installs the packages of package-lock.json, verified by hash, and runs no script of theirs."""
SCRIPTS = ("vendor.js", "bundle.js")
"""What copies the libraries, and what makes one file of the modules of the page."""


class FetchError(AggregatorError):
    """The libraries could not be fetched by npm, or not be stored."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="fetch", required=True)
    fetch = actions.add_parser("fetch", help="Fetch them by npm of Node.js 20 or newer: 50 MB, once.")
    fetch.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        help="Keep them in this folder (default: where `serve --web` looks for them).",
    )


def run(args: argparse.Namespace) -> int:
    """Raises MissingExtra, FetchError."""
    try:
        from device_runtime.aggregator.http import join
    except ModuleNotFoundError as error:
        raise MissingExtra(extra_needed("the server of the page", "aggregator,service", error.name)) from None
    web = join.page_folder()
    target = args.into or (web / join.VENDOR if IN_CHECKOUT else join.fetched_library_folder(web))
    fetch(web, target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"the page's libraries are in {target}: {size / 1e6:.0f} MB")
    return 0


def fetch(web: Path, target: Path) -> None:
    """Fetch the libraries into `target`, or leave it as it was. Raises MissingExtra, FetchError."""
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            raise MissingExtra(
                f"{program} is not installed: it comes with Node.js 20 or newer; or copy {target} from a "
                "machine where this was done"
            )
    with tempfile.TemporaryDirectory(prefix="device-runtime-web-") as name:
        folder = Path(name)
        unneeded = shutil.ignore_patterns("node_modules", "vendor", "tests", "vectors")
        shutil.copytree(web, folder, ignore=unneeded, dirs_exist_ok=True)
        _run(NPM, folder)
        for script in SCRIPTS:
            _run(("node", script), folder)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f".{target.name}.new")
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(folder / "vendor", beside)
            shutil.rmtree(target, ignore_errors=True)
            beside.rename(target)
        except OSError as error:
            raise FetchError(f"cannot keep the libraries in {target}: {error.strerror or error}") from None


def _run(words: tuple[str, ...], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise FetchError(f"`{' '.join(words[:2])}` failed: {lines[0] if lines else 'it says nothing'}")
