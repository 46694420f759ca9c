"""Test vectors that both sides check: `python -m tests.web.vectors` writes web/vectors/ from the real code.

Each module in `writers/` has `vectors()`, which gives a dict; it becomes `web/vectors/<module>.json`. Bytes
are written as hex digits. A whole number beyond 2**53 and a float that is not finite have no place in JSON:
a writer gives them as text or bytes.
"""

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WRITERS = sorted(path for path in (HERE / "writers").glob("*.py") if not path.stem.startswith("_"))
FOLDER = HERE.parents[1] / "web" / "vectors"
LARGEST = 2**53


def made(writer: Path) -> str:
    """The JSON of one writer: one line for each entry, and for each element of an entry that is a list."""
    spec = importlib.util.spec_from_file_location(f"tests_web_writers_{writer.stem}", writer)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for theirs
    spec.loader.exec_module(module)
    entries = ",\n".join(f"{json.dumps(key)}: {_entry(value)}" for key, value in module.vectors().items())
    return f"{{\n{entries}\n}}\n"


def target(writer: Path) -> Path:
    return FOLDER / f"{writer.stem}.json"


def _entry(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return "[\n" + ",\n".join(_line(item) for item in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(_plain(value), allow_nan=False, separators=(", ", ": "))


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
        target(path).write_text(made(path), "utf-8")
        print(target(path))
