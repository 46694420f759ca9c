"""Settings of the parameter-efficient tunable sets, with defaults and allowed values."""

from collections.abc import Mapping
from dataclasses import dataclass

from device_runtime.models.errors import ExportError

Value = int | float | str


@dataclass(frozen=True)
class IntegerSetting:
    """An integer of at least `least`."""

    default: int
    least: int = 1

    def read(self, value: Value) -> Value | None:
        """The value, or None if it is not allowed."""
        right = isinstance(value, int) and not isinstance(value, bool)
        return value if right and self.least <= value < 1 << 63 else None  # type: ignore[operator]

    def __str__(self) -> str:
        return f"an integer of at least {self.least}"


@dataclass(frozen=True)
class NumberSetting:
    """A number above 0 and at most `most`."""

    default: float | None
    most: float

    def read(self, value: Value) -> Value | None:
        """The value as float, or None if it is not allowed."""
        right = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if right and 0 < value <= self.most else None  # type: ignore[operator]

    def __str__(self) -> str:
        return f"a number above 0 and at most {self.most:g}"


@dataclass(frozen=True)
class ChoiceSetting:
    """One of several words; the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        """The first word."""
        return self.words[0]

    def read(self, value: Value) -> Value | None:
        """The value, or None if it is not allowed."""
        return value if value in self.words else None

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


_SEED = IntegerSetting(0, least=0)

SETTINGS: Mapping[str, Mapping[str, IntegerSetting | NumberSetting | ChoiceSetting]] = {
    "bias": {"head": ChoiceSetting(("with", "without")), "norms": ChoiceSetting(("biases", "affine"))},
    "adapter": {"reduction": IntegerSetting(8), "seed": _SEED},
    "prompt": {"tokens": IntegerSetting(10), "seed": _SEED},
    "prefix": {"tokens": IntegerSetting(10), "blocks": IntegerSetting(0, least=0), "seed": _SEED},
    "lora": {
        "rank": IntegerSetting(8),
        "alpha": NumberSetting(None, most=1e6),  # by default the rank
        "targets": ChoiceSetting(("attention", "all")),
        "seed": _SEED,
    },
    "sparse": {"density": NumberSetting(0.1, most=1.0), "seed": _SEED},
}


def completed(name: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """All settings of a set. Raises ExportError for an unknown set or setting, or a value out of range."""
    settings = settings_of(name)
    if unknown := sorted(values.keys() - settings.keys()):
        raise ExportError(f"tunable set {name} has no setting {unknown[0]!r}; it has {', '.join(settings)}")
    result: dict[str, Value] = {}
    for key, setting in settings.items():
        default = setting.default if setting.default is not None else result["rank"]
        value = setting.read(values.get(key, default))
        if value is None:
            raise ExportError(f"{key} of tunable set {name} is {values[key]!r}, expected {setting}")
        result[key] = value
    return result


def settings_of(name: str) -> Mapping[str, IntegerSetting | NumberSetting | ChoiceSetting]:
    """The settings that a set has. Raises ExportError for an unknown set."""
    if name not in SETTINGS:
        raise ExportError(f"there is no parameter-efficient set {name!r}; there are {', '.join(SETTINGS)}")
    return SETTINGS[name]
