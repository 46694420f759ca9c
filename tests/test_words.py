"""Bindings are named by nouns of the field (docs/glossary.md), not by a bare participle or pronoun."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "device_runtime"
WORDS = """
one made given found known mine told said there kept
asked wanted heard meant worked shown taken held seen lost
"""
VAGUE = frozenset(WORDS.split())
MOST = 36
"""Today's number. It may only fall: lower it with each change that takes some away."""


def bindings(tree: ast.AST) -> Iterator[str]:
    """The names that the code binds: parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_fewer_names_than_ever_are_a_bare_participle_or_pronoun() -> None:
    counts = Counter(
        {
            str(path.relative_to(PACKAGE)): sum(
                name.lstrip("_") in VAGUE for name in bindings(ast.parse(path.read_text("utf-8")))
            )
            for path in PACKAGE.rglob("*.py")
        }
    )
    total = counts.total()
    assert total <= MOST, f"{total} vague names, more than {MOST}; most are in {counts.most_common(5)}"
    assert total > MOST - 10, f"only {total} vague names: lower MOST, so that they do not come back"
