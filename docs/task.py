"""Writes docs/task.md from the code: python docs/task.py"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.cli.research.kinds import example
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.settings import SettingText

HERE = Path(__file__).parent
PAGE = HERE / "task.md"

HEAD = """<!-- Written by `python docs/task.py` from the code. Change the code, then run it again. -->

# Every setting of a task

A task says what is learnt and by which rules. `device-runtime serve TASK.toml` reads it, and its flags
stand over the file: `--stop-after` over `stop_after`, `--deadline` over `round_deadline_s`. All keys of the
first table have one but `kinds` (of which `--kinds` names some), `server` and `statistics`. Learning rate,
local epochs and batch size (`--lr`, `--epochs`, `--batch`) apply to all offered kinds that train in epochs;
`serve` says which. Other kinds keep their own; if no offered kind trains in epochs, `--lr` sets theirs. A
flag that no offered kind has is refused. A scenario of `simulate` has these keys in its table `[task]`,
without `seed`, `eval_data` and `min_devices`, and `simulate` has their flags. Paths are relative to the file.
In the tables, "none" is a key that is left out.

[deploy/site/task.toml](../deploy/site/task.toml), an example, which `device-runtime serve-init` writes:

"""

KINDS = """
## Kinds of update

Each `[[kinds]]` table offers one kind, the preferred first. Without any, a round offers {usual},
and `width-slice` before the last if the bundle has narrower parts and its loss is not of classes.
`device-runtime kinds` lists the kinds, `device-runtime kinds NAME` shows what stands here;
[kinds.md](kinds.md) says how they merge, and which defaults differ in rounds of several kinds. A table has:

"""

TERMS = """
## Terms of local training

Kinds with the setting `terms` train with these besides cross-entropy: a table by name, as in
`settings = { terms.fedprox.mu = 0.1 }`. Own ones: [own-term.md](own-term.md).
"""


def page() -> str:
    """All of docs/task.md."""
    usual = ", ".join(f"`{name}`" for name in registry.DEFAULT_KINDS)
    toml = (HERE.parent / "deploy" / "site" / "task.toml").read_text("utf-8")
    parts = [HEAD, f"```toml\n{toml}```\n", "\n## Keys of a task\n\n", _table(ranges.list_settings(Task))]
    parts += [KINDS.format(usual=usual), _table(ranges.list_settings(KindSettings))]
    parts += [_kind(name) for name in registry.KINDS]
    parts += [TERMS, *(_term(name) for name in registry.TERMS)]
    return "".join(parts)


def overview() -> str:
    """The kinds, as docs/kinds.md has them."""
    rows = [
        (f"`{name}`", kind.about.trains, kind.about.sends, kind.about.source)
        for name, kind in registry.KINDS.items()
    ]
    return _markdown(("kind", "a device trains", "sends", "method"), rows)


def _kind(name: str) -> str:
    kind = registry.KINDS[name]
    settings = list(ranges.list_settings(kind, kind.traits.refused))
    about = f"A device trains {kind.about.trains}; it sends {kind.about.sends}. {kind.about.source}."
    return f"\n### {name}\n\n{about}\n\n```toml\n{example(kind, settings)}\n```\n\n{_table(settings)}"


def _term(name: str) -> str:
    term = registry.TERMS[name]
    return f"\n### {name}\n\n{term.about[0].upper()}{term.about[1:]}.\n\n{_table(ranges.list_settings(term))}"


def _table(settings: Iterable[SettingText]) -> str:
    rows = [
        (f"`{row.name}`", row.type, f"`{row.default}`", row.range, row.unit, row.meaning, f"`{row.example}`")
        for row in settings
    ]
    return _markdown(("key", "type", "default", "range", "unit", "meaning", "example"), rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
