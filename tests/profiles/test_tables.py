import re
from pathlib import Path

import msgspec
import pytest

from device_runtime.profiles.fleets import groups
from device_runtime.profiles.fleets.fleet import load, preset_names
from docs.fleets import refreshed

PAGE = Path(__file__).parents[2] / "docs" / "fleets.md"
FIELDS = {
    "": groups.FleetGroup,
    "speed.": groups.SpeedSpread,
    "link.": groups.LinkSpread,
    "memory.": groups.MemoryLimit,
    "windows[].": groups.AvailabilityWindow,
    "failures.": groups.Failures,
    "battery.": groups.BatteryPack,
}


def test_the_page_s_tables_are_what_the_files_say():
    """Where it fails, run `python docs/fleets.py`."""
    page = PAGE.read_text("utf-8")
    assert refreshed(page) == page
    assert page.count("<!-- /") == 3


def test_the_page_has_every_field_with_its_default():
    rows = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    for prefix, kind in FIELDS.items():
        for field in msgspec.structs.fields(kind):
            if (
                isinstance(field.default, msgspec.Struct)
                or f"{field.name}." in FIELDS
                or field.name == "windows"
            ):
                continue
            default = "required" if field.default is msgspec.NODEFAULT else str(field.default)
            assert rows[prefix + field.name] == ("the profile's" if default == "None" else default)


def test_the_page_s_example_can_be_drawn(tmp_path):
    example = re.search(r"```toml\n# office.toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "office.toml"
    path.write_text(example[1])
    fleet = load(path).draw(10, seed=1)
    assert fleet.spec.name == "office"
    assert sorted(fleet.group(i) for i in range(10)) == ["board"] * 7 + ["phone"] * 3


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_on_the_page(name):
    assert f"* `{name}`: " in PAGE.read_text("utf-8")
