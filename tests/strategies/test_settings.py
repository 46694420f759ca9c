import json
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Annotated, Literal

import msgspec
import pytest

from device_runtime.content import tomllib
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.settings import Setting

EVERY = [(name, row) for name, kind in registry.KINDS.items() for row in registry.list_settings(kind)]


@pytest.mark.parametrize(("name", "row"), EVERY, ids=[f"{name}-{row.name}" for name, row in EVERY])
def test_every_setting_of_every_kind_is_described_and_its_example_is_accepted(name, row):
    assert row.meaning.endswith(".")
    assert row.unit
    assert tomllib.loads(f"settings = {{ {row.example} }}")["settings"] == json.loads(
        msgspec.json.encode(row.settings)
    )
    kind = registry.make(name, row.settings)
    assert registry.read(registry.write(kind)) == kind


@pytest.mark.parametrize("name", registry.KINDS)
def test_what_a_kind_refuses_is_refused_and_not_listed(name):
    kind = registry.KINDS[name]
    refused = kind.traits.refused
    examples = {row.name: row.settings for row in ranges.list_settings(kind) if row.name in refused}
    examples |= {f"terms.{term}": {"terms": {term: {}}} for term in registry.TERMS}
    assert not {row.name for row in registry.list_settings(kind)} & set(refused)
    for setting in refused:
        with pytest.raises(KindError):
            registry.make(name, examples[setting])


@pytest.mark.parametrize("name", registry.KINDS)
def test_a_number_outside_its_limits_is_refused_with_its_name_and_what_was_expected(name):
    kind = registry.KINDS[name]
    for key, setting, *_ in ranges._limited(kind):
        if setting.choices or isinstance(setting.example, tuple):
            continue
        type_of = type(setting.example)
        low = setting.at_least - 1 if isfinite(setting.at_least) else setting.more_than
        outside = [low, setting.less_than, *([setting.at_most + 1] if isfinite(setting.at_most) else [])]
        for value in (type_of(number) for number in outside if isfinite(number)):
            with pytest.raises(KindError, match=rf"\b{key} is {value}, expected"):
                registry.make(name, {**setting.beside, key: value})


@pytest.mark.parametrize(
    ("setting", "expected", "inside", "outside"),
    [
        (Setting("", 1, at_least=1), "1 or more", [1, 10**400], [0, -1]),
        (Setting("", 1, at_least=1, at_most=9), "1 to 9", [1, 9], [0, 10]),
        (Setting("", 1, more_than=0), "more than 0", [1e-9], [0, -1, nan, inf]),
        (Setting("", 1, more_than=0, at_most=1), "more than 0 to 1", [1, 0.1], [0, 1.1, nan]),
        (Setting("", 1, at_least=0, less_than=1), "at least 0 and less than 1", [0, 0.9], [1, -0.1, nan]),
        (Setting("", 1, more_than=0, less_than=1), "more than 0 and less than 1", [0.9], [0, 1]),
        (Setting("", "a", choices=("a", "b")), "one of a, b", ["a"], ["c", ""]),
        (Setting("", 1), "-", [1], []),
    ],
)
def test_limits_are_said_as_they_are_checked(setting, expected, inside, outside):
    assert setting.range == expected
    assert [value for value in inside if not setting.allows(value)] == []
    assert [value for value in outside if setting.allows(value)] == []


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Setting("How deep.", 3, "metres", at_least=1)] = 2


@dataclass(frozen=True)
class Outer:
    shares: Annotated[tuple[float, ...], Setting("Parts.", (0.5,), more_than=0)] = (0.1, 0.2)
    mode: Annotated[Literal["a", "b"], Setting("Which way.", "b", beside={"inner": {"depth": 4}})] = "a"
    inner: Annotated[Inner | None, Setting("A table.", {"depth": 1})] = None


def test_settings_are_listed_with_those_of_the_tables_within_as_toml_has_them():
    rows = {row.name: row for row in ranges.list_settings(Outer)}
    assert list(rows) == ["shares", "mode", "inner", "inner.depth"]
    assert (rows["shares"].type, rows["shares"].default) == ("list of number", "[0.1, 0.2]")
    assert (rows["mode"].range, rows["mode"].example) == ('one of "a", "b"', 'inner.depth = 4, mode = "b"')
    assert (rows["inner"].type, rows["inner"].default) == ("table", "none")
    deep = rows["inner.depth"]
    assert (deep.default, deep.range, deep.unit, deep.example) == (
        "2",
        "1 or more",
        "metres",
        "inner.depth = 3",
    )
    assert [row.name for row in ranges.list_settings(Outer, ("mode", "inner.depth"))] == ["shares", "inner"]


def test_an_element_of_a_list_is_checked_as_a_number_is():
    with pytest.raises(ValueError, match="shares is 0.0, expected more than 0"):
        ranges.check(Outer(shares=(0.5, 0.0)))


def test_a_field_that_says_nothing_of_itself_cannot_be_listed():
    @dataclass(frozen=True)
    class Silent:
        depth: int = 1

    with pytest.raises(TypeError, match=r"Silent\.depth has no Setting"):
        list(ranges.list_settings(Silent))
