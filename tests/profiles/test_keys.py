"""What is said of a key in a settings file that cannot be meant."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from device_runtime.content import explained, no_such_key


class Must(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    port: int = 0
    host: str = ""


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    leaf: Leaf = msgspec.field(default_factory=Leaf)
    perhaps: Leaf | None = None
    many: tuple[Leaf, ...] = ()
    named: dict[str, Leaf] = msgspec.field(default_factory=dict)
    must: Must | None = None
    way: Literal["up", "down"] | None = None
    spelled: Leaf | None = msgspec.field(default=None, name="written-so")


def refusal(settings, within=""):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(settings, Tree)
    return explained(caught.value, Tree, within)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"leaf": {"prot": 1}}, "leaf.prot: there is no such key; there are port, host; did you mean port?"),
        (
            {"perhaps": {"prot": 1}},
            "perhaps.prot: there is no such key; there are port, host; did you mean port?",
        ),
        ({"many": [{}, {"zzz": 1}]}, "many[1].zzz: there is no such key; there are port, host"),
        ({"named": {"a": {"zzz": 1}}}, "named[...].zzz: there is no such key; there are port, host"),
        ({"written-so": {"zzz": 1}}, "written-so.zzz: there is no such key; there are port, host"),
        ({"leaf": {"port": "x"}}, "leaf.port: expected `int`, got `str`"),
        ({"must": {}}, "must.size is missing"),
        ({"way": "left"}, "way: expected one of 'up', 'down', not 'left'"),
        ({"way": 3}, "way: expected `str`, got `int`"),  # and not `str | null`, which TOML lacks
    ],
)
def test_a_key_that_cannot_be_meant_is_said_with_its_place_and_those_that_there_are(settings, text):
    assert refusal(settings) == text


def test_a_key_that_stands_in_a_table_below_is_found_there():
    assert refusal({"prot": 3}).endswith(
        "; there are name, leaf, perhaps, many, named, must, way, written-so; did you mean leaf.port?"
    )


def test_settings_of_a_part_of_a_file_are_said_with_the_key_of_the_part():
    assert refusal({"leaf": {"prot": 1}}, "a.b").startswith("a.b.leaf.prot: ")
    assert refusal({"prot": 1}, "a.b").startswith("a.b.prot: ")


def test_a_key_that_begins_another_suggests_it():
    assert no_such_key("label", ("path", "label_column")).endswith("; did you mean label_column?")


def test_a_key_like_none_has_no_suggestion():
    assert no_such_key("quux", ("host", "port")) == "quux: there is no such key; there are host, port"
