import sqlite3
import subprocess
import sys
from contextlib import closing

import numpy as np
import onnxruntime
import pytest

from device_runtime import Personal
from device_runtime.device.personal.kept import PersonalModelStore
from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.errors import DataError


@pytest.fixture
def personal(tmp_path, bundle, offer):
    PersonalModelStore(tmp_path).keep(offer(4), bundle, bundle.weights())
    return Personal.open(tmp_path)


def test_each_sample_of_a_file_gets_its_labels_the_most_probable_first(personal, digits, tmp_path):
    np.save(tmp_path / "three.npy", digits[0][:3])
    np.savez(tmp_path / "two.npz", x=digits[0][:2])
    answers = personal.predict(tmp_path / "three.npy", top=10)
    assert [(answer.number, len(answer.guesses)) for answer in answers] == [(0, 10), (1, 10), (2, 10)]
    for sample in answers:
        probabilities = [guess.probability for guess in sample.guesses]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1.0, abs=1e-5)
    assert [answer.guesses for answer in personal.predict(tmp_path / "two.npz", top=10)] == [
        answer.guesses for answer in answers[:2]
    ]


def test_a_table_is_asked_about_with_and_without_its_labels(personal, digits, tmp_path):
    pixels = digits[0][:4].reshape(4, 64).astype(int).tolist()
    rows = [",".join(map(str, row)) for row in pixels]
    header = ",".join(f"pixel_{n}" for n in range(64))
    (tmp_path / "plain.csv").write_text("\n".join(rows))
    (tmp_path / "named.csv").write_text("\n".join([header, *rows]))
    (tmp_path / "first.csv").write_text("\n".join([f"digit,{header}", *(f"3,{row}" for row in rows)]))
    (tmp_path / "last.tsv").write_text("\n".join(f"{row},3".replace(",", "\t") for row in rows))
    np.save(tmp_path / "x.npy", digits[0][:4])
    expected = [answer.guesses for answer in personal.predict(tmp_path / "x.npy")]
    for name in ("plain.csv", "named.csv", "first.csv", "last.tsv"):
        assert [answer.guesses for answer in personal.predict(tmp_path / name)] == expected, name


def test_a_query_is_asked_about(personal, digits, tmp_path, monkeypatch):
    with closing(sqlite3.connect(tmp_path / "d.db")) as database, database:
        database.execute("CREATE TABLE seen (pixels BLOB, label TEXT)")
        database.executemany(
            "INSERT INTO seen VALUES (?, '')", [(x.astype(np.uint8).tobytes(),) for x in digits[0][:2]]
        )
    np.save(tmp_path / "x.npy", digits[0][:2])
    query = "SELECT pixels, label FROM seen"
    expected = [answer.guesses for answer in personal.predict(tmp_path / "x.npy")]
    assert [answer.guesses for answer in personal.predict(f"sqlite:{tmp_path / 'd.db'}?{query}")] == expected
    monkeypatch.chdir(tmp_path)
    long = f"{query} WHERE label IN ('{300 * 'a'}', '')"
    assert [answer.guesses for answer in personal.predict(f"sqlite:d.db?{long}")] == expected


def test_the_head_of_one_s_own_is_asked_where_there_is_one(tmp_path, bundle, offer, digits):
    keeper, head = PersonalModelStore(tmp_path), bundle.manifest.head
    keeper.keep(offer(4), bundle, bundle.weights())
    weights = bundle.weights()
    bias = np.zeros(10, np.float32)
    bias[6] = 1000
    from device_runtime.device.personal.kept import RoundEvaluation

    keeper.judge(RoundEvaluation(4, kept=True), {head.weight: weights[head.weight], head.bias: bias})
    np.save(tmp_path / "x.npy", digits[0][:5])
    assert {answer.label for answer in Personal.open(tmp_path).predict(tmp_path / "x.npy")} == {"6"}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.png", b"\x89PNG", "a damaged picture"),
        ("a.doc", b"text", "unsupported kind of file"),
        ("a.txt", b"text", "the task's input is no text"),
        ("a.wav", b"RIFF", "a damaged sound"),
        ("none.png", None, "cannot be read"),
        ("a.csv", b"1,2,3\n", "another number of features"),
        ("b.csv", b"", "a file without samples"),
    ],
)
def test_a_file_that_is_none_is_an_error_of_one_line(personal, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: {message}"):
        personal.predict(tmp_path / name)


def test_the_onnx_file_gives_the_same_without_us(personal, bundle, digits, tmp_path):
    personal.export_onnx(tmp_path / "mine.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "mine.onnx", providers=["CPUExecutionProvider"])
    x = bundle.manifest.input.prepare(digits[0][:7])
    assert np.array_equal(session.run(["logits"], {"x": x})[0], OnnxModel(bundle).logits(x))
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["labels"] == '["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]'
    assert metadata["preprocessing"].startswith(
        "pictures as 8x8 grey, black 0 and white 16; then x = (raw * scale"
    )
    with pytest.raises(DataError, match="cannot be written"):
        personal.export_onnx(tmp_path / "nowhere" / "mine.onnx")


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import device_runtime, sys; names = ('numpy', 'device_runtime.models'); "
        "print([name for name in names if name in sys.modules]); "
        "from device_runtime import Personal; print('onnxruntime' in sys.modules, 'torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split("\n")[:2] == ["[]", "False False"]


def test_values_that_are_no_numbers_get_no_label_and_no_samples_no_answer(personal, tmp_path):
    np.save(tmp_path / "a.npy", np.full((1, 8, 8), np.nan))
    with pytest.raises(DataError, match=r"a\.npy: .*not finite"):
        personal.predict(tmp_path / "a.npy")
    np.save(tmp_path / "none.npy", np.zeros((0, 8, 8)))
    assert personal.predict(tmp_path / "none.npy") == []


@pytest.mark.slow
def test_a_text_is_answered_whether_it_is_in_a_file_or_given(tmp_path, text_bundle, offer):
    PersonalModelStore(tmp_path).keep(offer(4), text_bundle, text_bundle.weights())
    personal = Personal.open(tmp_path)
    (tmp_path / "a.txt").write_text("a great film , it was warm .\n")
    [answer] = personal.read("a great film , it was warm .")
    [in_file] = personal.predict(tmp_path / "a.txt")
    assert answer.guesses == in_file.guesses
    logits = OnnxModel(text_bundle).logits(text_bundle.texts.ids(["a great film , it was warm ."]))
    assert answer.label == text_bundle.manifest.labels[int(logits.argmax())]
    [long] = personal.read("film " * 40)
    assert len(long.file) == 60
    assert long.file.endswith("..")
    with pytest.raises(DataError, match="an empty text"):
        personal.read("  ")


def test_a_model_of_pictures_is_not_asked_about_texts(personal):
    with pytest.raises(DataError, match="a great film: the task's input is no text"):
        personal.read("a great film")
