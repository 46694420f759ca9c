"""Docstrings and comments name classes, functions, constants and modules that exist."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "device_runtime"
RAISED = re.compile(r"\b[Rr]aises ((?:[A-Z]\w*(?:, and |, | and | or )?)+)|\bwhat ([A-Z]\w*) raises")
REFERRED = re.compile(r"\b(?:[Ss]ee|[Aa]s in|[Aa]s for) ([A-Z][a-z]\w+)")
QUOTED = re.compile(r"(?<!`)`((?=\w*[A-Z_.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`(?!`)")
CONSTANT = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]\b")
COMMENT = re.compile(r"(?:^|  )\s*#(.*)$")
DEFINITION = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
OF_OTHERS = {
    "BATTERY_PROPERTY_CURRENT_NOW": "of Android",
    "MeZO": "a paper's program",
    "TensorFlow": "a library that this project does not use",
    "z_p": "a variable of a formula",
}
"""Names of no code here, and what they are."""


class Module:
    """A module's definitions, its code without texts, and its docstrings and comments by line."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT)
        self.parts = {*self.path.parts[:-1], self.path.stem}
        lines = path.read_text().splitlines()
        tree = ast.parse("\n".join(lines))
        self.members: dict[str, set[str]] = {"": set()}
        self.bases: dict[str, list[str]] = {}
        self.texts: list[tuple[int, str]] = []
        for node in self._statements(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self.texts.append((node.lineno, str(node.value.value)))
                for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                    lines[number] = ""
        for number, line in enumerate(lines):
            if comment := COMMENT.search(line):
                self.texts.append((number + 1, comment.group(1)))
                lines[number] = line[: comment.start()]
        self.code = "\n".join(lines)

    def _statements(self, tree: ast.Module) -> Iterator[ast.stmt]:
        """All statements, noting what the module and its classes define."""
        open_: list[tuple[ast.AST, str, bool]] = [(tree, "", False)]
        while open_:
            parent, scope, local = open_.pop()
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.ClassDef):
                    open_.append((node, node.name, False))
                elif isinstance(node, ast.stmt):
                    open_.append((node, scope, local or isinstance(node, DEFINITION)))
                elif isinstance(node, ast.ExceptHandler | ast.match_case):
                    open_.append((node, scope, local))
                if isinstance(node, ast.stmt):
                    yield node
                    self._note(node, scope, local)

    def _note(self, node: ast.stmt, scope: str, local: bool) -> None:
        """Notes what a statement defines; of a `local` one in a function, only attributes."""
        if isinstance(node, DEFINITION):
            self.members[scope].add(node.name)
        if isinstance(node, ast.ClassDef):
            self.members.setdefault(node.name, set())
            self.bases[node.name] = [
                word for base in node.bases for word in re.findall(r"\w+", ast.unparse(base))
            ]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(part, ast.Attribute):
                        self.members[scope].add(part.attr)
                    elif isinstance(part, ast.Name) and not local:
                        self.members[scope].add(part.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.members[scope] |= {alias.asname or alias.name for alias in node.names}


@cache
def modules() -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted(ROOT.rglob("*.py")))


@cache
def words() -> frozenset[str]:
    """The words of all code: identifiers, and words in strings that are not docstrings."""
    every = {word for module in modules() for word in re.findall(r"\w+", module.code)}
    return frozenset(every.union(dir(builtins), *(module.parts for module in modules())))


@cache
def dotted_words() -> frozenset[str]:
    return frozenset(
        word
        for module in modules()
        for word in re.findall(r"(?=\b([A-Za-z_]\w*\.[A-Za-z_]\w*)\b)", module.code)
    )


def members(class_: str) -> set[str]:
    """The members of a class of this package, with those of its bases in this package."""
    all_members: set[str] = set()
    for module in modules():
        if class_ in module.bases:
            all_members |= module.members[class_]
            for base in module.bases[class_]:
                all_members |= members(base)
    return all_members


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if not {first, *rest} <= words():
        return False
    for before, after in zip((first, *rest), rest, strict=False):
        if f"{before}.{after}" in dotted_words():
            continue
        homes = [module for module in modules() if before in module.parts]
        in_module = any(after in module.parts or after in module.members[""] for module in homes)
        classes = any(before in module.bases for module in modules())
        in_class = classes and after in members(before)
        if (homes or classes) and not in_module and not in_class:
            return False
    return True


def names(text: str) -> Iterator[str]:
    """The names of code in a docstring or comment."""
    for match in RAISED.finditer(text):
        yield from re.findall(r"\b[A-Z]\w*\b", match.group(1) or match.group(2))
    for pattern in (REFERRED, QUOTED):
        yield from (match.group(1) for match in pattern.finditer(text))
    yield from CONSTANT.findall(text)


def test_names_in_docstrings_and_comments_exist() -> None:
    wrong = [
        f"{module.path}:{line + text.count(chr(10), 0, text.find(name))} {name}"
        for module in modules()
        for line, text in module.texts
        for name in names(text)
        if name not in OF_OTHERS and not exists(name)
    ]
    assert not wrong, "\n".join(wrong)
