"""A device as people run it: pictures in class folders, a few rounds, then questions to the model it kept."""

import json
import subprocess

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from sklearn.datasets import load_digits


@pytest.fixture
def pictures(tmp_path):
    """Digits as PNG below their names."""
    digits = load_digits()
    for number in range(300):
        folder = tmp_path / "pictures" / str(digits.target[number])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(digits.images[number] * 255 / 16)).save(folder / f"{number}.png")
    (tmp_path / "pictures" / "3" / "cut.png").write_bytes(b"\x89PNG")
    return tmp_path / "pictures"


@pytest.mark.slow
def test_a_device_learns_from_pictures_and_answers_with_its_own_model(
    broker, launched, program, lines, pictures, tmp_path
):
    run, state = tmp_path / "run", tmp_path / "pi"
    task = ("--bundle", "digits-wrn-10-1", "--rounds", 4, "--deadline", 600, "--kinds", "full")
    arguments = ("--name", "pi", "--state", state, "--data", pictures, "--held-out", 0.2, "--personal-head")
    with (
        launched(tmp_path / "serve.log", "serve", *task, "--broker", broker.url, "--run-dir", run) as serve,
        launched(tmp_path / "pi.log", "join", broker.url, *arguments, "--until-done") as device,
    ):
        assert device.wait(600) == 0
        assert serve.wait(600) == 0
    trained = [line["num_examples"] for line in lines(run / "contributions.jsonl")]
    record = json.loads((state / "personal" / "model.json").read_text())
    assert record["rounds"][0]["served"]["num_examples"] + trained[0] == 300
    assert record["round"] == 5  # the model that a fifth round would have begun with

    process = subprocess.run(
        [program, "predict", "--state", state, "--format", "json", *sorted(pictures.glob("[1-6]/*.png"))],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    answers = json.loads(process.stdout)
    right = [answer["guesses"][0]["label"] == answer["file"].split("/")[-2] for answer in answers]
    assert np.mean(right) > 0.7
    assert (process.returncode, "cut.png: a damaged picture" in process.stderr) == (1, True)

    file = tmp_path / "mine.onnx"
    subprocess.run([program, "predict", "--state", state, "--export-onnx", file], timeout=600, check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    spec = json.loads(session.get_modelmeta().custom_metadata_map["input"])
    raw = np.asarray(Image.open(answers[0]["file"]), np.float32)[None, None] / 255 * 16
    x = (raw * spec["scale"] - spec["mean"][0]) / spec["std"][0]
    logits = session.run(["logits"], {"x": x.astype(np.float32)})[0][0]
    probability = np.exp(logits.max() - logits.max()) / np.exp(logits - logits.max()).sum()
    assert probability == pytest.approx(answers[0]["guesses"][0]["probability"], abs=1e-4)
