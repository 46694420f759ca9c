"""What the code binds is named by nouns (docs/glossary.md), not by a bare participle or pronoun."""

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = """
one made given found known mine told said there kept
asked wanted heard meant worked shown taken held seen lost
"""
VAGUE = frozenset(WORDS.split())
MOST = {"device_runtime": 58, "tests": 17, "benchmarks": 5, "examples": 0, "web": 0}
"""Today's numbers. They may only fall: lower them with each change that takes some away."""
JAVASCRIPT = re.compile(r"\b(?:const|let|var|function) (\w+)|(\w+) =>")
"""Declarations, functions, and arrow functions of one parameter."""


def bindings(path: Path) -> Iterator[str]:
    """The names that a file binds: functions, parameters, variables, attributes."""
    text = path.read_text("utf-8")
    if path.suffix == ".js":
        yield from ("".join(found.groups("")) for found in JAVASCRIPT.finditer(text))
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


@pytest.mark.parametrize("folder", MOST)
def test_fewer_names_than_ever_are_a_bare_participle_or_pronoun(folder: str) -> None:
    listed = subprocess.check_output(
        ["git", "ls-files", f"{folder}/*.py", f"{folder}/*.js"], cwd=ROOT, text=True
    )
    counts = Counter(
        {
            path: sum(name.lstrip("_") in VAGUE for name in bindings(ROOT / path))
            for path in listed.splitlines()
        }
    )
    total, most = counts.total(), MOST[folder]
    assert total <= most, f"{total} vague names, more than {most}; most are in {counts.most_common(5)}"
    assert total > most - 10, f"only {total} vague names: lower MOST, so that they do not come back"
