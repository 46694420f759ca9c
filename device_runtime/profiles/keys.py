"""Says which key of a settings file cannot be meant: its place, the keys there are, the nearest of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin

import msgspec

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
"""A step of a path such as `groups[...].share` or `kinds[0]`."""


def no_such_key(place: str, known: Iterable[str], below: Iterable[str] = ()) -> str:
    """For the key at `place` ("http.prot"), where `known` could stand; and `below`, such as "task.rounds"."""
    names = tuple(known)
    nearest = {path.rpartition(".")[2]: path for path in (*below, *names)}
    near = get_close_matches(place.rpartition(".")[2], nearest, n=1)
    hint = f"; did you mean {nearest[near[0]]}?" if near else ""
    return f"{place}: there is no such key; there are {', '.join(names)}{hint}"


def explained(error: msgspec.ValidationError, kind: type, within: str = "") -> str:
    """What converting settings to `kind` says, with the key in front: "Object contains unknown field `prot` -
    at `$.http`" becomes "http.prot: there is no such key; there are host, port; did you mean port?".

    `within` is the key of those settings in a larger file.
    """
    text, found, path = str(error).rpartition(" - at `$")
    if not found:
        text, path = path, ""
    path = path.rstrip("`").lstrip(".")
    place = ".".join(filter(None, (within, path)))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text):
        fields = {field.encode_name: _bare(field.type) for field in msgspec.structs.fields(_at(kind, path))}
        below = (f"{outer}.{inner.encode_name}" for outer, inner in _inner(fields))
        return no_such_key(f"{place}.{unknown[1]}" if place else unknown[1], fields, below)
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text


def _inner(fields: Mapping[str, Any]) -> Iterator[tuple[str, msgspec.structs.FieldInfo]]:
    """The fields of those that are tables themselves."""
    for name, kind in fields.items():
        if _is_struct(kind):
            yield from ((name, field) for field in msgspec.structs.fields(kind))


def _at(kind: Any, place: str) -> Any:
    """The type of settings at a place below `kind`."""
    for step in _STEP.findall(place):
        kind = _bare(kind)
        if step.startswith("["):
            kind = next(part for part in reversed(get_args(kind)) if part is not Ellipsis)
        else:
            kind = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == step)
        kind = _bare(kind)
        kind = next((part for part in get_args(kind) if _is_struct(part)), kind) if _may_miss(kind) else kind
    return kind


def _bare(kind: Any) -> Any:
    """A type without what is said of it beside, as Annotated does."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _may_miss(kind: Any) -> bool:
    """Whether this is a type or None."""
    return type(None) in get_args(kind)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
