"""Pages of the site that are made from the code, links to files beside docs/, and docstrings as Markdown.

MkDocs calls the functions named `on_..`, and mkdocstrings reads docstrings through PlainDocstrings.
"""

from __future__ import annotations

import argparse
import ast
import os
import posixpath
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import device_runtime
from device_runtime import cli
from device_runtime.aggregator.tasks import systems
from device_runtime.aggregator.tasks.known_systems import SYSTEMS
from device_runtime.api import data
from device_runtime.cli.table import COMMANDS, GROUPS
from device_runtime.service_process import Exit

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "report-a-vulnerability.md",
    "broker/PROTOCOL.md": "reference/protocol.md",
    "README.md": "index.md",
}
"""A page outside docs/ -> the page of the site that has its text, or stands for it."""
FILES = "files"
"""The folder of the site for the other files that pages link to, each as text."""

_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")
_FILE = re.compile(r"\[((?:[\w-]+/)*[\w-]+\.md)\](?=\(([^)\s:#]+\.md)[)#])")
"""A link whose text is the name of a page's file, which a reader of the site does not know."""
_MERMAID = re.compile(r"^```mermaid.*?^```\n", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, the pages outside docs/ and the files that any page links to."""
    generated = {
        "reference/api.md": api(),
        "reference/commands.md": commands(),
        "reference/exit-codes.md": exit_codes(),
        "reference/names-of-systems.md": names_of_systems(),
    }
    outside = {to: (ROOT / path).read_text("utf-8") for path, to in OUTSIDE.items() if to != "index.md"}
    for path, text in {**generated, **outside}.items():
        files.append(File.generated(config, path, content=text))
    for page in list(files.documentation_pages()):
        for target in _linked(page.content_string, page.src_uri):
            if not files.get_file_from_path(target) and target.startswith(FILES):
                text = (ROOT / target.removeprefix(FILES + "/").removesuffix(".txt")).read_text("utf-8")
                files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links to where the site has the file; leaves out diagrams that need a library from elsewhere."""
    parts = _FENCE.split(_MERMAID.sub("", markdown))
    for number, part in enumerate(parts[::2]):
        titled = _FILE.sub(lambda match: f"[{_title(match[2], page.file.src_uri, files) or match[1]}]", part)
        parts[2 * number] = _LINK.sub(lambda match: _relinked(match, page.file.src_uri), titled)
    return "".join(parts)


def _title(link: str, page: str, files: Files) -> str:
    """The heading of the page that a link leads to; "" for other files."""
    file = files.get_file_from_path(_place(link, page))
    if file is None or not file.is_documentation_page():
        return ""
    heading = re.search(r"^# (.+)$", file.content_string, re.MULTILINE)
    return heading[1] if heading else ""


def _linked(text: str, page: str) -> Iterator[str]:
    for part in _FENCE.split(text)[::2]:
        for match in _LINK.finditer(part):
            yield _place(match[2], page)


def _relinked(match: re.Match[str], page: str) -> str:
    target = posixpath.relpath(_place(match[2], page), posixpath.dirname(page) or ".")
    anchor = "" if target.endswith(".txt") else match[3] or ""
    return f"{match[1]}{target}{anchor}{match[4]}"


def _place(link: str, page: str) -> str:
    """The path in the site of what a link of this page leads to."""
    source = next((path for path, to in OUTSIDE.items() if to == page != "index.md"), f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"{FILES}/{path}.txt"


def api() -> str:
    """The public names, for mkdocstrings to fill in."""
    parts = ["# Python API\n\n`import device_runtime as dr`: every public name, from its docstring.\n"]
    names = [name for name in device_runtime.__all__ if name != "data"]
    parts += [_of_api(name, _home(name)) for name in names]
    parts += ["\n## dr.data\n\nSources of samples, for `data=` of `dr.simulate`.\n"]
    parts += [_of_api(f"data.{name}", _home_of(getattr(data, name)), 3) for name in data.__all__]
    return "".join(parts)


def _home(name: str) -> str:
    module, _, other = device_runtime._HOMES[name].partition(":")
    return f"device_runtime.{module}.{other or name}"


def _home_of(item: Any) -> str:
    return f"{item.__module__}.{item.__qualname__}"


def _of_api(name: str, path: str, level: int = 2) -> str:
    return f"\n::: {path}\n    options:\n      heading: dr.{name}\n      heading_level: {level}\n"


def commands() -> str:
    """Every command with its help, in a terminal of 100 columns."""
    os.environ["COLUMNS"] = "100"
    parts = ["# Commands\n\n`device-runtime COMMAND --help` prints what stands here.\n"]
    for group, heading in GROUPS.items():
        parts.append(f"\n## {heading}\n")
        for name, command in COMMANDS.items():
            if command.group == group:
                parts.append(f"\n### {name}\n\n{command.help}\n")
                parts += [f"\n```text\n{text}```\n" for text in _helps(name)]
    return "".join(parts)


def _helps(name: str) -> Iterator[str]:
    command = COMMANDS[name]
    parser = cli._parser(name, command)
    import_module(command.module).add_arguments(parser)
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (inner.format_help() for inner in action.choices.values())


def exit_codes() -> str:
    """The exit statuses of services, with the texts that stand below them in the code."""
    module = ast.parse(Path(import_module(Exit.__module__).__file__ or "").read_text("utf-8"))
    [body] = [node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Exit"]
    texts = [node.value.value for node in body[2::2] if isinstance(node, ast.Expr)]  # type: ignore[attr-defined]
    rows = ((str(code.value), " ".join(text.split())) for code, text in zip(Exit, texts, strict=True))
    head = (
        "# Exit codes\n\nOf services (`serve`, `join`, `edge`, `mask-helper`). Other commands end with 0, "
        "with 2 after an error that they print, and with 130 after Ctrl-C. "
        "[What a supervisor does with them](../service.md#exit-status).\n\n"
    )
    return head + _table(("code", "meaning"), rows)


def names_of_systems() -> str:
    """Every system and modifier."""
    head = "# Names of systems\n\n`serve --system NAME`, `simulate --compare kinds=NAME,NAME`: "
    head += "[how they are used, and where they differ from the papers](../systems.md).\n\n"
    rows = [(f"`{name}`", system.says, system.source) for name, system in SYSTEMS.items()]
    modifiers = [(f"`+{name}`", says) for name, says in systems.MODIFIERS.items()]
    alone = ", ".join(f"`{name}`" for name in systems.names() if name not in SYSTEMS)
    return (
        f"{head}{_table(('name', 'what it is', 'source'), rows)}\n## Modifiers\n\n"
        f"{_table(('after a name', 'what it changes'), modifiers)}\n## One kind alone\n\n{alone}\n"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


class PlainDocstrings(griffe.Extension):
    """Docstrings of this project as Markdown: lines `name: text` are a list, doctests are code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """The text of a docstring as Markdown.

    >>> print(as_markdown("Adds.\\n\\nx: one number,\\nor more.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    * **x**: one number,
      or more.
    <BLANKLINE>
    ```python
    >>> 1 + 1
    2
    ```
    """
    return "\n\n".join(_block(block) for block in re.split(r"\n\n+", textwrap.dedent(docstring).strip()))


def _block(block: str) -> str:
    if block.startswith(">>> "):
        return f"```python\n{block}\n```"
    if not re.match(r"[\w.]+(, [\w.]+)*: ", block):
        return block.replace("docs/", "")
    lines = [re.sub(r"^([\w.]+(?:, [\w.]+)*): ", r"* **\1**: ", line) for line in block.splitlines()]
    return "\n".join(line if line.startswith("* ") else f"  {line}" for line in lines)
