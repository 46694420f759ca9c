import json
import resource
import sys

import numpy as np
import pytest

from device_runtime.cli import main
from device_runtime.models.data import open_samples


@pytest.fixture
def samples(tmp_path, digit_png):
    for label, count in (("0", 1), ("7", 6), ("tree", 2)):
        (tmp_path / "d" / label).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "d" / label / f"{number}.png").write_bytes(digit_png(10 * number))
    (tmp_path / "d" / "read.me").write_text("")
    return tmp_path / "d"


def test_the_report_counts_classes_and_says_what_is_left_out_and_why(samples, capsys):
    assert main(["data", "check", str(samples), "--held-out", "0"]) == 0
    output = capsys.readouterr().out
    assert f"{samples} for digits-wrn-10-1: 7 samples, 0.0 MB in memory" in output
    assert "the task takes pictures as 8x8 grey, black 0 and white 16" in output
    assert "\n7      6 ##############################\n" in output
    assert "\n0      1 #####\n" in output
    assert "     2  label 'tree' is not of the task: tree/0.png, tree/1.png" in output
    assert "     1  unsupported kind of file (.me): read.me" in output


@pytest.mark.parametrize("factor, extent", [(1, ""), (16, "0 to 256"), (1 / 255, "0 to 0.06")])
def test_values_that_are_scaled_otherwise_than_the_task_s_are_told(
    tmp_path, bundle, caplog, capsys, factor, extent
):
    file = tmp_path / "d.npz"
    x = np.arange(20 * 64, dtype=np.float32).reshape(20, 1, 8, 8) % 17
    np.savez(file, x=x * np.float32(factor), y=np.arange(20) % 10)
    assert main(["data", "check", str(file), "--held-out", "0"]) == 0
    output = capsys.readouterr().out
    open_samples(file, bundle.manifest)
    for text in (output, caplog.text):
        assert ("the task expects 0 to 16: scale them alike" in text) == bool(extent)
        assert extent in text
    assert ("; values are 0 to 16\n" in output) == (factor == 1)


def test_the_report_as_json_has_the_same(samples, capsys):
    (samples / "labels.toml").write_text('[labels]\ntree = "3"\n')
    assert main(["data", "check", str(samples), "--format", "json", "--held-out", "0.4"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["samples"], content["stored"]) == (9, {"picture 8x8 grey 8 bits": 9})
    assert content["classes"][3] == {"label": "3", "samples": 2}
    assert 0 < content["held_out"] < 9
    assert content["memory_bytes"] == 9 * (64 * 4 + 4)


def test_the_reason_for_no_samples_is_given_and_a_list_that_is_cut_says_so(tmp_path, capsys):
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "no samples: nothing is there" in capsys.readouterr().out
    table = tmp_path / "a.csv"
    table.write_text(",".join([*(f"p{number}" for number in range(64)), "label"]) + "\n")
    assert main(["data", "check", str(table)]) == 1
    assert "a file without samples: a.csv" in capsys.readouterr().out
    assert main(["data", "check", str(table), "--label-column", "nope"]) == 1
    assert "there are p0, p1, p2, p3, p4, p5, p6, p7 and 57 more" in capsys.readouterr().out


def test_data_without_a_sample_of_the_task_ends_with_1_and_no_data_with_2(tmp_path, capsys):
    assert main(["data", "check", str(tmp_path)]) == 1
    assert main(["data", "check", str(tmp_path / "nowhere")]) == 2
    assert "no data at" in capsys.readouterr().err


def test_speech_is_taken_by_its_folders(tmp_path, speech, wav_bytes):
    for word in ("yes", "No", "maybe"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "a.wav").write_bytes(wav_bytes(bytes(range(200)) * 100, rate=8000))
    samples = open_samples(tmp_path, speech)
    assert sorted(samples.training.y.tolist()) == [0, 1]
    assert samples.training.x.shape == (2, 1, 61, 40)
    assert samples.forms == {"sound 8000 Hz, 1 channel, 16 bits": 2}


@pytest.mark.skipif(sys.platform != "linux", reason="nothing caps the memory of a process")
def test_a_file_that_takes_more_memory_than_the_check_may_hold_is_left_out(samples, capsys):
    (samples / "7" / "large.ppm").write_bytes(b"P6 4000 4000 255\n" + bytes(48_000_000))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert main(["data", "check", str(samples), "--memory", "50"]) == 0
    output = capsys.readouterr().out
    assert "7 samples" in output
    assert "     1  no memory to read it: 7/large.ppm" in output
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
