"""Selects the devices that a task trains on, by tags and capabilities, and those that it holds out.

    devices_with = ["tag=kitchen", "memory>=512MB", "engine=onnx|torch"]      all of them must hold
    hold_out_devices = ["10%", "tag=lab", "kitchen-pi"]                       any of them is enough

A condition is NAME OPERATOR VALUE. `tag`, `group`, `profile`, `engine` and `name` take = and !=, with
several values as in "a|b"; `memory` (a number with MB or GB), `samples` and `version` take = != < <= > >=. A
device of which such a number is unknown does not meet a condition on it. `tag=floor` is met by the tags floor
and floor=2, `tag=floor=2` by the latter alone. `group` is that of the fleet in a simulation, else what the
device's tag "group=NAME" says.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from device_runtime.tags import check_tags

TEXTS = ("tag", "group", "profile", "engine", "name")
NUMBERS = ("memory", "samples", "version")
SIZES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
HOLD_OUT_DRAW = "hold-out devices"
"""Keeps the draw of a share of the devices apart from all others of the same seed."""

_CONDITION = re.compile(r"\s*([a-z]+)\s*(!=|<=|>=|=|<|>)\s*(\S.*?)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kB|MB|GB)")
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class DeviceTraits:
    """What is known of a device when devices are selected; empty and 0: unknown.

    group: of the fleet. profile: of the device, such as "pi-5". memory_bytes: what its process may take.
    samples: those that it has said it holds.
    """

    name: str
    tags: tuple[str, ...] = ()
    group: str = ""
    profile: str = ""
    engine: str = ""
    version: str = ""
    memory_bytes: int = 0
    samples: int = 0

    @property
    def own_group(self) -> str:
        """The group of the fleet, or that of the tag "group=NAME"."""
        named = (tag.partition("=")[2] for tag in self.tags if tag.startswith("group="))
        return self.group or next(named, "")


@dataclass(frozen=True)
class Condition:
    """One condition on a device; `text` is it as it was written."""

    text: str
    name: str
    sign: str
    values: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Condition:
        """The condition that a text says. Raises ValueError, which says what was expected."""
        match = _CONDITION.fullmatch(text)
        if match is None or match[1] not in TEXTS + NUMBERS:
            names = ", ".join(TEXTS + NUMBERS)
            raise ValueError(
                f"condition {text!r} is not understood, expected NAME=VALUE with one of {names}, such as "
                "tag=kitchen or memory>=512MB"
            )
        name, sign, rest = match.groups()
        if name in TEXTS and sign not in ("=", "!="):
            raise ValueError(f"condition {text!r}: {name} is a text, expected = or !=")
        values = tuple(part.strip() for part in rest.split("|")) if name in TEXTS else (rest,)
        if name == "tag":
            try:
                check_tags(values)
            except ValueError as error:
                raise ValueError(f"condition {text!r}: {error}") from None
        elif not all(values) or (name in TEXTS and any(re.search(r"[=<>!]", value) for value in values)):
            raise ValueError(f"condition {text!r} is not understood, expected {name}=VALUE or {name}=A|B")
        elif name in NUMBERS:
            _number(name, rest, text)
        return cls(text.strip(), name, sign, values)

    def holds(self, device: DeviceTraits) -> bool:
        """Whether the device meets the condition."""
        if self.name in TEXTS:
            meets = self._names(device)
            return meets if self.sign == "=" else not meets
        number = _known_number(self.name, device)
        if number is None:
            return False
        return _COMPARE[self.sign](number, _number(self.name, self.values[0], self.text))

    def _names(self, device: DeviceTraits) -> bool:
        if self.name == "tag":
            keys = {tag.partition("=")[0] for tag in device.tags}
            return bool(keys.union(device.tags) & set(self.values))
        value = device.own_group if self.name == "group" else getattr(device, self.name)
        return value in self.values

    def has(self, device: DeviceTraits) -> str:
        """What the device has in place of what was wanted, for people."""
        if self.name == "tag":
            return f"tags {', '.join(device.tags)}" if device.tags else "no tags"
        if self.name == "memory":
            size = device.memory_bytes
            return f"memory {size / 1e6:.0f} MB" if size else "unknown memory"
        value = device.own_group if self.name == "group" else getattr(device, self.name)
        return f"{self.name} {value}" if value else f"no {self.name}"


@dataclass(frozen=True)
class Participants:
    """Which devices take part in training.

    conditions: all must hold. held_out: conditions and names of devices that are never trained on.
    held_out_share: a share of the devices (0 to less than 1), drawn by `seed` and the device's name, so that
    it is the same whoever else there is.
    """

    conditions: tuple[Condition, ...] = ()
    held_out: tuple[Condition | str, ...] = ()
    held_out_share: float = 0.0
    seed: int = 0

    @classmethod
    def read(cls, devices_with: Iterable[str], hold_out_devices: Iterable[str], seed: int) -> Participants:
        """Those that these settings of a task say. Raises ValueError for one that is not understood."""
        held_out: list[Condition | str] = []
        share = 0.0
        for text in hold_out_devices:
            if (match := _SHARE.fullmatch(text)) is not None:
                share += float(match[1]) / 100
            elif _NAME.fullmatch(text):
                held_out.append(text)
            else:
                held_out.append(Condition.read(text))
        if not share < 1:
            raise ValueError(f"hold_out_devices has {share:.0%}, expected less than 100%: nobody would train")
        return cls(tuple(map(Condition.read, devices_with)), tuple(held_out), share, seed)

    def __bool__(self) -> bool:
        """Whether any device may be left out."""
        return bool(self.conditions or self.held_out or self.held_out_share)

    def holds_out(self, device: DeviceTraits) -> bool:
        """Whether the device is never trained on."""
        return self.hold_out_draw(device.name) < self.held_out_share or self.names_held_out(device)

    def names_held_out(self, device: DeviceTraits) -> bool:
        """Whether the device is held out by its name or by a condition."""
        return any(
            each == device.name if isinstance(each, str) else each.holds(device) for each in self.held_out
        )

    def hold_out_draw(self, name: str) -> float:
        """A number from 0 to less than 1, drawn for the device; those below the share are held out."""
        key = f"{HOLD_OUT_DRAW} {self.seed} {name}".encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:6], "big") / 2**48

    def reason_left_out(self, device: DeviceTraits) -> str:
        """Why the device does not train in this task; empty if it does."""
        for condition in self.conditions:
            if not condition.holds(device):
                return f"the task asks devices with {condition.text}, and it has {condition.has(device)}"
        return "it is held out: it is evaluated, and never trained on" if self.holds_out(device) else ""


def _number(name: str, value: str, condition: str) -> object:
    """The value of a condition on a number. Raises ValueError."""
    if name == "memory":
        if (match := _SIZE.fullmatch(value)) is not None:
            return round(float(match[1]) * SIZES[match[2]])
        raise ValueError(f"condition {condition!r}: {value!r} is no size, expected such as 512MB or 2GB")
    if name == "version":
        if _VERSION.fullmatch(value):
            return _version(value)
        raise ValueError(f"condition {condition!r}: {value!r} is no version, expected such as 0.2.0")
    if value.isdecimal():
        return int(value)
    raise ValueError(f"condition {condition!r}: {value!r} is no whole number")


def _known_number(name: str, device: DeviceTraits) -> object:
    """The device's value; None if it is unknown."""
    if name == "version":
        match = _VERSION.match(device.version)
        return None if match is None else _version(match[0])
    return (device.memory_bytes if name == "memory" else device.samples) or None


def _version(text: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end: 0.2 and 0.2.0 are the same."""
    numbers = [int(part) for part in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
