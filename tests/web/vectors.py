"""Test vectors that both sides check: `python -m tests.web.vectors` writes web/vectors/ from the real code,
and the browser's copy of the table of what graphs may hold.

Each module in `writers/` and its folders has `vectors()`, which gives a dict; it becomes
`web/vectors/<module>.json`, in a folder of the same name. Bytes
are written as hex digits. A whole number beyond 2**53 and a float that is not finite have no place in JSON:
a writer gives them as text or bytes.

Vectors are exact, bit for bit, on every processor, except what a writer names:

* `NEAR` maps the name of an entry to a tolerance: how far a float in it may lie from the committed one, over
  1 or over the committed one where that is larger. The writer says why by so much.
* `ROUNDED` names entries of bytes that are rounded from floats: where a float lies beside a half, another
  processor rounds it the other way. One value in ROUNDED_ONE_IN, or one at all, may be off by 1.

What lies within these bounds stays as it was written before.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRITERS = sorted(path for path in (HERE / "writers").rglob("*.py") if not path.stem.startswith("_"))
FOLDER = HERE.parents[1] / "web" / "vectors"
TABLE = HERE.parents[1] / "device_runtime" / "models" / "bundles" / "allowed_graphs.json"
TABLE_IN_BROWSER = HERE.parents[1] / "web" / "device" / "allowed_graphs.js"
LARGEST = 2**53
ROUNDED_ONE_IN = 500


@dataclass(frozen=True)
class Bounds:
    """What of a writer's vectors may differ between processors; see above."""

    near: Mapping[str, float] = field(default_factory=dict)
    rounded: frozenset[str] = frozenset()


def text_of(writer: Path) -> str:
    """The JSON of one writer: one line for each entry, and for each element of an entry that is a list."""
    spec = importlib.util.spec_from_file_location(f"tests_web_writers_{writer.stem}", writer)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for theirs
    spec.loader.exec_module(module)
    bounds = Bounds(getattr(module, "NEAR", {}), frozenset(getattr(module, "ROUNDED", ())))
    before = json.loads(target(writer).read_text("utf-8")) if target(writer).exists() else None
    vectors = settled(_plain(module.vectors()), before, bounds)
    entries = ",\n".join(f"{json.dumps(key)}: {_entry(value)}" for key, value in vectors.items())
    return f"{{\n{entries}\n}}\n"


def settled(now: Any, before: Any, bounds: Bounds, near: float = 0.0) -> Any:
    """The same with what is within the bounds of `before` as it was before."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {
            key: before[key]
            if key in bounds.rounded and _rounded_alike(value, before.get(key))
            else settled(value, before.get(key), bounds, bounds.near.get(key, near))
            for key, value in now.items()
        }
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [settled(*pair, bounds, near) for pair in zip(now, before, strict=True)]
    if isinstance(now, float) and isinstance(before, float | int):
        return before if abs(now - before) <= near * max(1.0, abs(before)) else now
    return now


def _rounded_alike(now: str, before: Any) -> bool:
    """Whether two texts of hex digits are bytes of which hardly any are off by 1, and none by more."""
    if not isinstance(before, str) or len(before) != len(now):
        return False
    off = [abs(a - b) for a, b in zip(bytes.fromhex(now), bytes.fromhex(before), strict=True) if a != b]
    return all(step == 1 for step in off) and len(off) <= max(1, len(now) // 2 // ROUNDED_ONE_IN)


def target(writer: Path) -> Path:
    return (FOLDER / writer.relative_to(HERE / "writers")).with_suffix(".json")


def table_in_browser() -> str:
    """device_runtime/models/bundles/allowed_graphs.json as a module, which every browser can load."""
    return (
        "/** What a graph may hold: allowed_graphs.json, copied by python -m tests.web.vectors. */\n"
        f"export const ALLOWED = {TABLE.read_text('utf-8').strip()};\n"
    )


def _entry(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(_line(item) for item in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(", ", ": "))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"{value} is no exact number of JSON: write it as text")
    return value


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in WRITERS:
        target(path).parent.mkdir(exist_ok=True)
        target(path).write_text(text_of(path), "utf-8")
        print(target(path))
    TABLE_IN_BROWSER.write_text(table_in_browser(), "utf-8")
