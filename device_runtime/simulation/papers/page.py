"""The page of results: one section for each table and scale, between markers; all else is left as it is."""

from __future__ import annotations

import re
from pathlib import Path

from device_runtime.simulation.errors import SimulationError

HEAD = """# Results

Every section is written by the command that stands in it; what is between its markers is replaced when it is
run again. Numbers of a paper are as printed there; ours are measured by `device-runtime compare`. A 95%
interval is that of the mean difference by seed (Student's t); a claim whose bound lies in it is
not significant.
"""


def put(page: str, mark: str, section: str) -> str:
    """The page with this section: in the place of the one with this mark, or else at the end."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    whole = f"{begin}\n{section}{end}\n"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}\n?", re.S)
    if found.search(page):
        return found.sub(lambda _: whole, page, count=1)
    return f"{page.rstrip()}\n\n{whole}" if page.strip() else f"{HEAD}\n{whole}"


def write(path: Path, mark: str, section: str) -> None:
    """Into the file, which is made where there is none. Raises SimulationError."""
    try:
        page = path.read_text("utf-8") if path.exists() else ""
        path.write_text(put(page, mark, section), "utf-8")
    except OSError as error:
        raise SimulationError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
