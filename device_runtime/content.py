"""Finds the content shipped with the code; reads settings from TOML, and explains wrong keys and values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

_INSTALLED = Path(__file__).parent / "_content"
IN_CHECKOUT = not _INSTALLED.is_dir()
"""Whether this package runs from a clone: its content is then beside the package, and may be edited."""


def content(folder: str) -> Path:
    """The path of a content folder: "broker", "deploy", "examples", "models", "profiles" or "web"."""
    return (Path(__file__).parents[1] if IN_CHECKOUT else _INSTALLED) / folder


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def near(folder: Path, value: Any) -> Any:
    """The path of a file that lies in the folder, as text; any other value unchanged."""
    if not isinstance(value, str) or not value:
        return value
    try:
        return str(folder / value) if (folder / value).exists() else value
    except (OSError, ValueError):  # no name of a file: too long, or with a zero byte
        return value


def source_near(folder: Path, value: Any) -> Any:
    """A source FILE.py:NAME whose file lies in the folder, as text; any other value unchanged."""
    file, colon, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    return f"{near(folder, file)}{colon}{name}" if file.endswith(".py") else value


def read_toml(path: Path, failed: type[Exception]) -> dict[str, Any]:
    """Returns the content of a TOML file, or raises `failed` with the file's path and the reason."""
    try:
        return dict(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise failed(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise failed(f"{path} is not TOML: {error}") from None


_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
"""One step of a path such as `groups[...].share` or `kinds[0]`."""


def no_such_key(place: str, keys: Iterable[str], below: Iterable[str] = ()) -> str:
    """The message about an unknown key at `place` ("http.prot"), which suggests the most similar key.

    `keys` are those of that table; `below` are dotted keys of tables inside it, such as "task.rounds".
    """
    from difflib import get_close_matches  # 0.15 MB, which an idle device does without

    names = tuple(keys)
    nearest = {path.rpartition(".")[2]: path for path in (*below, *names)}
    key = place.rpartition(".")[2]
    near = get_close_matches(key, nearest, n=1) or [name for name in nearest if name.startswith(f"{key}_")]
    hint = f"; did you mean {nearest[near[0]]}?" if near else ""
    return f"{place}: there is no such key; there are {', '.join(names)}{hint}"


def explained(error: msgspec.ValidationError, kind: type, within: str = "") -> str:
    """The message of an error from converting settings to `kind`, with the key in front.

    "Object contains unknown field `prot` - at `$.http`" becomes "http.prot: there is no such key; there are
    host, port; did you mean port?". `within` is the key of those settings in a larger file.
    """
    text, mark, path = str(error).rpartition(" - at `$")
    if not mark:
        text, path = path, ""
    text = text.replace(" | null`", "`")  # TOML has no null
    path = path.rstrip("`").lstrip(".")
    place = ".".join(filter(None, (within, path)))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text):
        fields = {
            field.encode_name: _without_metadata(field.type)
            for field in msgspec.structs.fields(_type_at(kind, path))
        }
        below = (f"{outer}.{inner.encode_name}" for outer, inner in _inner_fields(fields))
        return no_such_key(f"{place}.{unknown[1]}" if place else unknown[1], fields, below)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"{place}.{missing[1]} is missing" if place else f"{missing[1]} is missing"
    if other := re.fullmatch(r"Invalid enum value (.*)", text):
        choices = ", ".join(map(repr, _choices(_type_at(kind, path))))
        return f"{place}: expected one of {choices}, not {other[1]}"
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text


def _inner_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """(field, inner field) of every field that is a table itself."""
    for name, kind in fields.items():
        if _is_struct(kind):
            yield from ((name, field) for field in msgspec.structs.fields(kind))


def _type_at(kind: Any, place: str) -> Any:
    """The type of the settings at a path below `kind`."""
    for step in _STEP.findall(place):
        kind = _without_metadata(kind)
        if step.startswith("["):
            kind = next(part for part in reversed(get_args(kind)) if part is not Ellipsis)
        elif is_dataclass(kind):
            kind = get_type_hints(kind, include_extras=True)[step]
        else:
            kind = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == step)
        kind = _without_metadata(kind)
        if type(None) in get_args(kind):
            kind = next((part for part in get_args(kind) if _is_struct(part) or is_dataclass(part)), kind)
    return kind


def _choices(kind: Any) -> Iterator[object]:
    """The values of a Literal, which may stand within a union."""
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    else:
        for part in get_args(kind):
            yield from _choices(part)


def _without_metadata(kind: Any) -> Any:
    """A type without its Annotated metadata."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
