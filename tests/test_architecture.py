"""The floors and the trips of docs/architecture.md are those of the code.

All of it is read from the source by `ast`; nothing is imported. A stop is a function or a class. The stop
before it (or the one that `from N` names) calls it: that module imports the stop's module, and that function
names it, or names a function of its own module that does. Stops that no call joins say by what they are
joined, in the words that `joint` knows.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from device_runtime.content import read_toml

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
STEP = "device_runtime/aggregator/machine/step.py"
TRIP = re.compile(r"^### ([^\n]+): (\d+) stops\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
NUMBERED = re.compile(r"^\d+\. .*$", re.MULTILINE)
STOP = re.compile(r"^(\d+)\. (?:\((.+?)\) )?`(device_runtime/[\w/]+\.py)::([\w.]+)`: \S")
CLASS = re.compile(r"^class (?P<name>\w+)|^(?P<alias>\w+) = (?P<of>\w+)\[", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Stop:
    """A stop of a trip; `words` say how it is reached, `name` is that of its function or class."""

    number: int
    words: str
    file: str
    name: str

    @property
    def last(self) -> str:
        """The name by which it is called."""
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.number}. {self.file}::{self.name}"


def trips() -> dict[str, tuple[int, list[Stop]]]:
    """The trips of the page by title: how many stops the heading names, and the stops."""
    return {title: (int(count), stops_of(text)) for title, count, text in TRIP.findall(PAGE)}


def stops_of(text: str) -> list[Stop]:
    lines = NUMBERED.findall(text)
    matches = [STOP.match(line) for line in lines]
    unread = [line for line, match in zip(lines, matches, strict=True) if match is None]
    assert not unread, "expected `N. (how it is reached) `file::name`: what happens`"
    return [Stop(int(match[1]), match[2] or "", match[3], match[4]) for match in matches if match]


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text("utf-8"))


@cache
def file_of(module: str) -> str:
    """The file of a module or package of the project; empty for any other."""
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if (ROOT / file).is_file()), "")


@cache
def definition(file: str, name: str) -> ast.AST | None:
    """The function, method or class of this name; None if there is none."""
    node: ast.AST = tree(file)
    for part in name.split("."):
        inside = [
            each
            for each in getattr(node, "body", ())
            if isinstance(each, Function | ast.ClassDef) and each.name == part
        ]
        if len(inside) != 1:
            return None
        [node] = inside
    return node


def identifiers(node: ast.AST) -> Iterator[str]:
    """The names in a piece of code; attributes as `.feed`, those of a class as `Rules.of`."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            of_class = isinstance(each.value, ast.Name) and each.value.id[:1].isupper()
            yield f"{each.value.id}.{each.attr}" if of_class else f".{each.attr}"
        elif isinstance(each, ast.alias):
            yield each.name.rpartition(".")[2]


@cache
def parts(file: str) -> dict[str, tuple[ast.AST, ...]]:
    """A module's functions, constants and methods of any class, by name; of a class its `__init__`."""
    content: dict[str, tuple[ast.AST, ...]] = {}

    def add(name: str, node: ast.AST) -> None:
        content[name] = (*content.get(name, ()), node)

    for node in tree(file).body:
        if isinstance(node, Function):
            add(node.name, node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, Function):
                    add(node.name if method.name == "__init__" else method.name, method)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    add(target.id, node.value)
    return content


@cache
def own_names(file: str, name: str = "") -> frozenset[str]:
    """The names in a function or class, or in a whole module."""
    node = definition(file, name) if name else tree(file)
    assert node is not None, f"{file}::{name} does not exist"
    return frozenset(identifiers(node))


def names(stop: Stop) -> frozenset[str]:
    """The names that a stop's function uses, and those that functions of its own module use for it."""
    return names_within(stop.file, stop.name)


@cache
def names_within(file: str, name: str) -> frozenset[str]:
    node = definition(file, name)
    assert node is not None, f"{file}::{name} does not exist"
    used, waiting, visited = set[str](), [node], set[int]()
    while waiting:
        node = waiting.pop()
        visited.add(id(node))
        fresh = set(identifiers(node)) - used
        used |= fresh
        for each in fresh:
            waiting += [other for other in parts(file).get(each.lstrip("."), ()) if id(other) not in visited]
    return frozenset(used)


@cache
def imports(file: str) -> frozenset[str]:
    """The files of the project that a file imports, also for types, with what packages among them import."""
    package = file.removesuffix(".py").split("/")[:-1]
    direct = set[str]()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            direct |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            direct |= {alias.name for alias in node.names}
    files = {path for module in direct if (path := file_of(module))}
    passed_on = [imports(path) for path in files if path.endswith("/__init__.py") and path != file]
    return frozenset(files.union(*passed_on))


def knows(used: frozenset[str], name: str) -> bool:
    """Whether a function, class or module is among these names, alone or as that of a module: `ev.Kept`."""
    return name in used or f".{name}" in used


def is_named(callee: Stop, caller: Stop) -> bool:
    """Whether the caller names a function, or a method of an object or of its class."""
    if "." in callee.name:
        return not names(caller).isdisjoint({f".{callee.last}", callee.name})
    return knows(names(caller), callee.name)


def calls(caller: Stop, callee: Stop) -> bool:
    """Whether the one calls the other; to call a method, its module must know the class."""
    owner, _, _ = callee.name.rpartition(".")
    if callee.file not in imports(caller.file) or not is_named(callee, caller):
        return False
    packages = [file for file in imports(caller.file) if file.endswith("/__init__.py")]
    return not owner or any(knows(own_names(file), owner) for file in (caller.file, *packages))


@cache
def homes() -> dict[str, tuple[str, str]]:
    """The file of each class of the project, and its name there, of which AnyStrategy is another."""
    return {
        match["name"] or match["alias"]: (str(path.relative_to(ROOT)), match["name"] or match["of"])
        for path in sorted((ROOT / "device_runtime").rglob("*.py"))
        for match in CLASS.finditer(path.read_text("utf-8"))
    }


@cache
def class_named(name: str) -> tuple[str, ast.ClassDef] | None:
    """The file and the class of this name; names of public classes are unique in the project."""
    file, own = homes().get(name, ("", ""))
    inside = tree(file).body if file else ()
    return next(
        ((file, node) for node in inside if isinstance(node, ast.ClassDef) and node.name == own), None
    )


def bases(node: ast.ClassDef) -> list[str]:
    return [
        next(identifiers(base.value if isinstance(base, ast.Subscript) else base), "") for base in node.bases
    ]


@cache
def members(node: ast.ClassDef) -> set[str]:
    """Methods, class variables, and attributes that methods set."""
    own = {each.name for each in node.body if isinstance(each, Function)}
    own |= {
        each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    return own | {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }


def derives(node: ast.ClassDef, ancestor: str) -> bool:
    above = [place[1] for base in bases(node) if (place := class_named(base))]
    return any(each.name == ancestor or derives(each, ancestor) for each in above)


def implements(stop: Stop, interface: ast.ClassDef) -> bool:
    """Whether a stop is a method of the interface, in a class that derives from it or fits a Protocol."""
    owner = class_named(stop.name.partition(".")[0])
    methods = {each.name for each in interface.body if isinstance(each, Function)}
    if owner is None or owner[0] != stop.file or stop.last not in methods:
        return False
    return derives(owner[1], interface.name) or (
        "Protocol" in bases(interface) and methods <= members(owner[1])
    )


def registered(stop: Stop, name: str) -> bool:
    """Whether the stop's module hands its function to this class, as `SINGLE = SampleFormat(_read)` does."""
    return any(
        isinstance(node, ast.Assign) and {name, stop.last} <= set(identifiers(node.value))
        for node in tree(stop.file).body
    )


def through(before: Stop, after: Stop, name: str) -> str:
    """Why two stops are not joined by this class of the project; empty if they are.

    The class is an event or a result that the one makes and the other takes; an interface that the one calls
    and the other implements, or is handed to; or its object holds what the one calls, which is in its module
    or in one that it imports.
    """
    place = class_named(name)
    if place is None:
        return f"there is no class {name}"
    if knows(names(before), name) and knows(own_names(after.file, after.name), name):
        return ""
    if not knows(own_names(before.file), name) and place[0] != before.file:
        return f"{before.file} does not know {name}"
    if registered(after, name):
        return ""
    holds = after.file in {place[0], *imports(place[0])}
    if is_named(after, before) and (implements(after, place[1]) or holds):
        return ""
    return f"{name} does not join it to {before}"


def over_mqtt(before: Stop, after: Stop) -> str:
    sends, takes = ".publish" in names(before), "Received" in names(after)
    return "" if sends and takes else f"{before} publishes: {sends}; it receives: {takes}"


def when_the_round_is_over(_: Stop, after: Stop) -> str:
    decides = after.file == STEP and knows(names(after), "DoPhase")
    return "" if decides else "the state machine of rounds decides that"


def back_in_the_caller(before: Stop, after: Stop) -> str:
    return "" if calls(after, before) else f"it does not call {before}"


WORDS: dict[str, Callable[[Stop, Stop], str]] = {
    "back in the caller": back_in_the_caller,
    "over MQTT": over_mqtt,
    "when the round is over": when_the_round_is_over,
}


def joint(before: Stop, after: Stop, words: Sequence[str]) -> str:
    """Why a stop is not reached as its words say; empty if it is."""
    if not words:
        return "" if calls(before, after) else f"it is not called by {before}"
    [word, *more] = words
    if more:
        return f"too many words: {', '.join(words)}"
    if match := re.fullmatch(r"through `(\w+)`", word):
        return through(before, after, match[1])
    return WORDS[word](before, after) if word in WORDS else f"nobody knows the words {word!r}"


def faults(stops: Sequence[Stop]) -> list[str]:
    """What is wrong with a trip, by stop."""
    wrong = [f"{stop}: the file does not exist" for stop in stops if not (ROOT / stop.file).is_file()]
    wrong += [
        f"{stop}: no such name" for stop in stops if not wrong and definition(stop.file, stop.name) is None
    ]
    if wrong:
        return wrong
    for place, (before, after) in enumerate(pairwise(stops), 1):
        words = after.words.split(", ") if after.words else []
        caller = before
        if words and (match := re.fullmatch(r"from (\d+)", words[0])):
            if not 1 <= int(match[1]) < place:
                wrong.append(f"{after}: stop {match[1]} is not an earlier one")
                continue
            caller, words = stops[int(match[1]) - 1], words[1:]
        if before.file == after.file:
            wrong.append(f"{after}: the stop before it is in the same module")
        elif why := joint(caller, after, words):
            wrong.append(f"{after}: {why}")
    return wrong


def test_the_picture_has_the_floors_of_pyproject() -> None:
    block = re.search(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block, "the picture is a block ```text"
    packages: list[str] = []
    floors: dict[str, list[str]] = {}
    for line in block[1].splitlines():
        text = line.partition("#")[0].rstrip()
        if text.startswith("    "):
            floors.setdefault(packages[-1].rpartition(" | ")[2], []).extend(text.strip(" >").split(" > "))
        elif text.startswith("| "):
            packages[-1] += f" {text}"
        else:
            packages.append(text)
    contracts = read_toml(ROOT / "pyproject.toml", ValueError)["tool"]["importlinter"]["contracts"]
    layers = {each["containers"][0]: each["layers"] for each in contracts if each["type"] == "layers"}
    assert packages == layers.pop("device_runtime")
    assert floors == {name.removeprefix("device_runtime."): rows for name, rows in layers.items()}


def test_there_are_four_trips() -> None:
    assert len(trips()) == 4


@pytest.mark.parametrize("title", trips())
def test_a_trip_leads_from_each_stop_to_the_next(title: str) -> None:
    count, stops = trips()[title]
    assert [stop.number for stop in stops] == list(range(1, count + 1))
    assert faults(stops) == []


STRANGER = ("device_runtime/user_account.py", "provide_temporary_folder")


@pytest.mark.parametrize("title", trips())
def test_a_wrong_stop_is_noticed(title: str) -> None:
    """Each stop in turn gets a name that is not there, a function from elsewhere, and other words."""
    _, stops = trips()[title]
    file, name = STRANGER
    for place, stop in enumerate(stops):
        wrong = [replace(stop, name=f"{stop.name}_"), replace(stop, file=file, name=name)]
        wrong += (
            [replace(stop, words=""), replace(stop, words="through `RunFolderError`")] if stop.words else []
        )
        wrong += [replace(stop, words="by and by")] if place else []
        for other in wrong:
            assert faults([*stops[:place], other, *stops[place + 1 :]]), f"{other} is not noticed"
    assert faults(stops[::-1])
