"""Each tutorial is followed as it is written: its files, its commands one after another, its Python."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
PAGES = sorted(page.name for page in TUTORIALS.glob("*.md"))
BLOCK = re.compile(r"^```(\w*)(?: title=\"([\w.]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("8883", "1883", "8080")


def blocks(page):
    """The language, the file and the text of every block that is run; others have no language and no `$`."""
    text = (TUTORIALS / page).read_text("utf-8")
    return [block for block in BLOCK.findall(text) if block[0] or block[2].startswith("$ ")]


def script(page):
    """The whole page as a script of bash, with other ports; and the lines that it shows."""
    lines, expected = ["set -e"], []
    for language, file, text in blocks(page):
        if file or language == "python":
            name = file or "block.py"
            lines += [f"cat > {name} <<'END'", text.rstrip(), "END"]
            lines += [] if file else [f"python {name}"]
            continue
        lines += [
            line[2:] for line in text.splitlines() if line.startswith("$ ") and "pip install" not in line
        ]
        expected += [line for line in text.splitlines() if not line.startswith("$ ")]
    return "\n".join(lines), [line for line in expected if line.strip("- ")]


def masked(line):
    """Without figures, and what depends on them: their number of digits, units, columns."""
    return re.sub(r"\s+", " ", re.sub(r"[\d.,]+(e-\d+)?( [kM]?(J|B))?", "N", line)).strip()


@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_is_one_page_of_300_to_600_words(page):
    assert 300 <= len((TUTORIALS / page).read_text("utf-8").split()) <= 600
    assert len(blocks(page)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_does_what_it_shows(page, folder):
    text, expected = script(page)
    for port in PORTS:
        text = text.replace(port, str(_free_port()))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    environment = {**os.environ, "HOME": str(folder), "PATH": path, "COLUMNS": "200"}
    stop = "kill $(jobs -p) $(cat enrolment/data/mosquitto.pid 2> /dev/null) 2> /dev/null || true"
    whole = f"trap '{stop}' EXIT TERM\nexec > output.txt 2>&1\n{text}\n"
    done = subprocess.run(["bash", "-c", whole], cwd=folder, env=environment, timeout=300)
    output = (folder / "output.txt").read_text("utf-8")
    assert done.returncode == 0, output[-3000:]
    printed = {masked(line) for line in re.split(r"[\n\r]", output)}
    assert [line for line in expected if masked(line) not in printed] == []


@pytest.fixture
def folder():
    """A folder that Mosquitto, under a user of its own, may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
