"""Pages name files, links, commands and options that exist."""

import argparse
import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from device_runtime.cli.table import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for place in (
        ".",
        "docs",
        "docs/tutorials",
        "laboratory",
        "laboratory/notes",
        "laboratory/results",
        "broker",
        "models/bundles",
        "examples/new",
        "web",
    )
    for page in (ROOT / place).glob("*.md")
    if page.name not in ("CHANGELOG.md", "changes-0.2.0.md")
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE_FILE = re.compile(
    r"`((?:device_runtime|tests|benchmarks|examples|models|profiles|broker|web|docs)/[\w./-]*\.\w+)(?:::\w+)?`"
)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: lower case, spaces become hyphens, punctuation goes."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.parent == ROOT / "docs" / "reference":  # made, and checked, with the site
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_project_that_a_page_names_exist(page: Path) -> None:
    named = CODE_FILE.findall(page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `device-runtime` line in the blocks of a page, continuation lines joined."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:\$ )?device-runtime (\S.*)", line):
                yield re.split(r"\s+[#|>&]", match.group(1))[0].split()


@cache
def options(command: str) -> frozenset[str]:
    parser = argparse.ArgumentParser()
    import_module(COMMANDS[command].module).add_arguments(parser)
    names, open_ = set(), [parser]
    while open_:
        for action in open_.pop()._actions:
            names.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                open_.extend(action.choices.values())
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    wrong = []
    for command, *words in commands(page.read_text()):
        if command.startswith("-"):
            continue
        if command not in COMMANDS:
            wrong.append(command)
            continue
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        wrong += [f"{command} {option}" for option in flags - options(command)]
    assert not wrong


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def marked_slow(path, name):
    """ "slow" or "partly slow", as the page of faults says it; "" for a test that always runs."""
    tree = ast.parse(path.read_text("utf-8"))
    [test] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    of_module = [ast.unparse(node.value) for node in tree.body if "pytestmark" in ast.unparse(node)[:10]]
    marks = [*of_module, *(ast.unparse(decorator) for decorator in test.decorator_list)]
    if "pytest.mark.slow" in marks:
        return "slow"
    return "partly slow" if any("pytest.mark.slow" in mark for mark in marks) else ""


def test_the_page_of_faults_names_tests_that_exist_and_says_which_are_slow():
    wrong, path = [], None
    for file, name, mark in re.findall(
        r"`(tests/[\w/]+\.py)?(?:::(\w+))?`(?: \(\*((?:partly )?slow)\*\))?",
        (ROOT / "docs/faults.md").read_text("utf-8"),
    ):
        path = ROOT / file if file else path
        if not path.is_file():
            wrong.append(f"{file} does not exist")
        elif name and (right_mark := marked_slow(path, name)) != mark:
            wrong.append(f"{file}::{name} is {right_mark or 'not slow'}")
    assert wrong == []
