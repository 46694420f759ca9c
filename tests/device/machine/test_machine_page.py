from pathlib import Path

from docs.machine import refreshed


def test_the_page_of_the_machine_is_as_it_is_generated_now():
    page = (Path(__file__).parents[3] / "docs" / "device-machine.md").read_text("utf-8")
    assert refreshed(page) == page, "run python docs/machine.py, and look"
