"""The examples of docs/data.md, run on the files that they speak of."""

import re
import runpy
import shlex
import shutil
import sqlite3
import wave
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from sklearn.datasets import load_digits

from device_runtime.cli import main
from device_runtime.models.bundles.inputs import InputSpec, WindowInput

DOCS = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^\$ device-runtime (data check .*)\n((?:(?!\$ |```).*\n)+)", DOCS, re.M))
RECORDED = (
    ("Yes", 16000, 1, 1.0, 6),
    ("no", 44100, 2, 1.5, 4),
    ("kitchen", 8000, 1, 0.6, 2),
    ("door", 8000, 1, 1.0, 1),
)
"""Folder, rate, channels, seconds and number of the recordings."""


@pytest.fixture
def place(tmp_path, monkeypatch, png_bytes):
    """A folder with pictures/, digits.db and recorded/, as the page has them."""
    monkeypatch.chdir(tmp_path)
    digits = load_digits()
    with closing(sqlite3.connect("digits.db")) as database, database:
        database.execute("CREATE TABLE seen (pixels BLOB, digit INTEGER)")
        for number in range(120):
            image, label = np.uint8(digits.images[number]), str(digits.target[number])
            put(tmp_path / "pictures" / label / f"{number}.png", png_bytes(image * 15))
            database.execute("INSERT INTO seen VALUES (?, ?)", (image.tobytes(), label))
    put(tmp_path / "pictures" / "blank" / "0.png", png_bytes(np.uint8(digits.images[0]) * 15))
    put(tmp_path / "pictures" / "1" / "cut.png", png_bytes(np.uint8(digits.images[0]))[:60])
    put(tmp_path / "pictures" / "notes.doc", b"")
    return tmp_path


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def record(path, rate, channels, seconds):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(np.random.default_rng(0).bytes(2 * channels * int(rate * seconds)))


@pytest.mark.parametrize("line", [li for li in EXAMPLES if "pictures" in li or "digits" in li])
def test_data_check_prints_what_the_page_shows(place, capsys, line):
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.rstrip() == EXAMPLES[line].rstrip()


def test_the_label_map_of_the_page_does_what_the_page_shows(place, speech, monkeypatch, capsys):
    for name, rate, channels, seconds, count in RECORDED:
        for number in range(count):
            record(place / "recorded" / name / f"{number}.wav", rate, channels, seconds)
    cut = place / "recorded" / "no" / "3.wav"
    cut.write_bytes(cut.read_bytes()[:9000])
    labels = re.findall(r"```toml\n(.*?)```", DOCS, re.S)[0]  # the first of the page
    (place / "recorded" / "labels.toml").write_text(labels)
    manifest = msgspec.structs.replace(speech, name="words", labels=("yes", "no", "_unknown_", "_silence_"))
    monkeypatch.setattr("device_runtime.cli.on_device.data.find_bundle", lambda name: name)
    monkeypatch.setattr(
        "device_runtime.cli.on_device.data.Bundle.open",
        lambda path: SimpleNamespace(manifest=manifest, texts=None),
    )
    monkeypatch.setattr("device_runtime.cli.on_device.data.Judge._checked", lambda *_: None)
    [line] = [line for line in EXAMPLES if "recorded" in line]
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.rstrip() == EXAMPLES[line].rstrip()


def test_the_recordings_of_the_page_become_what_it_shows(tmp_path, bundle, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    activities = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "activities.py"))
    activities["write"](tmp_path, 1, 40, 0)
    phone = tmp_path / "phone"
    phone.mkdir()
    (tmp_path / "p01" / "walking").rename(phone / "walking")
    (tmp_path / "p01" / "sitting" / "1.csv").rename(phone / "sitting.csv")
    lines = ["time,x,y,z,activity"]
    parts = (
        ("p01/running/1", "running", 900),
        ("phone/walking/1", "walking", 60),
        ("p01/stairs/2", "stairs", 1200),
    )
    for file, label, end in parts:
        lines += [f"{row},{label}" for row in Path(f"{file}.csv").read_text().splitlines()[1:end]]
    lines[499] = "9.96,,,,running"
    (phone / "monday.csv").write_text("\n".join(lines))
    spec = InputSpec((3, 100), window=WindowInput(50, ("x", "y", "z"), rate=50))
    labels = ("sitting", "stairs", "walking", "running")
    manifest = msgspec.structs.replace(bundle.manifest, name="activities", input=spec, labels=labels)
    opened = SimpleNamespace(manifest=manifest, texts=None)
    monkeypatch.setattr("device_runtime.cli.on_device.data.find_bundle", lambda name: name)
    monkeypatch.setattr("device_runtime.cli.on_device.data.Bundle.open", lambda path: opened)
    monkeypatch.setattr("device_runtime.cli.on_device.data.Judge._checked", lambda *_: None)
    [line] = [line for line in EXAMPLES if "phone" in line]
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.rstrip() == EXAMPLES[line].rstrip()


def test_the_example_of_texts_is_that_of_the_page(place, reviews, text_bundle, monkeypatch, capsys):
    shutil.copy(reviews, place / "reviews.tsv")
    monkeypatch.setattr("device_runtime.cli.on_device.data.find_bundle", lambda name: text_bundle.path)
    [line] = [line for line in EXAMPLES if "reviews" in line]
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out.rstrip() == EXAMPLES[line].rstrip()
