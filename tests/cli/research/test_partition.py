import re

import numpy as np
import pytest

from device_runtime.cli import main
from device_runtime.simulation.data.text import matrix


def test_it_says_how_uneven_a_partition_is_and_draws_it(tmp_path, capsys):
    picture = tmp_path / "p.png"
    assert main(["partition", "--devices", "7", "--alpha", "0.1", "--out", str(picture)]) == 0
    output = capsys.readouterr().out
    assert "1,437 training samples and 360 for evaluation, uint8 1x8x8, 10 classes" in output
    assert "1,435 given to 7 clients" in output  # 205 each
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_data_and_devices_of_a_scenario_may_be_changed(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('fleet = "phones"\ndevices = 12\n[data]\npartition = "classes"\nclasses_per_client = 3\n')
    out = ["--out", str(tmp_path / "p.png")]
    assert main(["partition", str(file), *out]) == 0
    output = capsys.readouterr().out
    assert "12 clients" in output
    assert "classes of a client         3        3         3       3" in output
    assert main(["partition", str(file), "--set", "classes_per_client=4", "--devices", "9", *out]) == 0
    output = capsys.readouterr().out
    assert "9 clients" in output
    assert "classes of a client         4" in output


def test_groups_of_the_fleet_are_shown_with_their_classes(tmp_path, capsys):
    picture = tmp_path / "p.png"
    assert main(["partition", "straggler-classes", "--out", str(picture)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^fast +28 +980 +0, 1, 2, 3, 4, 5, 6$", output, re.M)
    assert re.search(r"^weak +12 +432 +7, 8, 9$", output, re.M)
    assert main(["partition", "digits", "--out", str(picture)]) == 0
    assert "group of the fleet" not in capsys.readouterr().out


def test_vectors_of_a_text_s_vocabulary_are_written(tmp_path, capsys):
    (tmp_path / "d.tsv").write_text("good film\t1\nbad film\t0\n" * 10)
    (tmp_path / "glove.txt").write_text("film 1 2\ngood 3 4\n")
    text = ["--data", "text", "--data-path", str(tmp_path / "d.tsv"), "--devices", "2"]
    vectors = ["--set", f"vectors={tmp_path / 'glove.txt'}", "--vectors-out", str(tmp_path / "v.npy")]
    assert main(["partition", *text, *vectors, "--out", str(tmp_path / "p.png")]) == 0
    assert "4 token ids" in capsys.readouterr().out
    expected = matrix(("<padding>", "<unknown>", "film", "good"), tmp_path / "glove.txt")
    assert np.array_equal(np.load(tmp_path / "v.npy"), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "2000"], "2000 devices, but 1437 training samples"),
        (["--data", "mnist"], "source mnist needs a path"),
        (["--set", "colour=1"], "data.colour: there is no such key; there are source, "),
        (["--set", "alpha"], "'alpha' is not NAME=VALUE"),
        (["--vectors-out", "v.npy"], "--vectors-out is for text"),
        (["nowhere.toml"], "nowhere.toml"),
        (["straggler-classes", "--devices", "1"], "data.groups.weak: none of the fleet's 1 devices"),
        (["--out", "no/such/folder/p.png"], "no/such/folder/p.png cannot be written"),
        (["--out", "p.pdf"], "--out p.pdf: the picture is a PNG"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["partition", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_a_table_s_columns_are_chosen_and_said_and_its_clients_are_kept_together(tmp_path, capsys):
    file = tmp_path / "walks.csv"
    rows = "".join(f"{'cat' if i % 2 else 'dog'},{i / 8},person {i % 3},{i % 5}\n" for i in range(30))
    file.write_text(f"label,w,who,x\n{rows}")
    table = ["--data", "table", "--data-path", str(file), "--out", str(tmp_path / "p.png"), "--devices", "3"]
    assert main(["partition", *table, "--client-column", "who", "--partition", "natural"]) == 0
    output = capsys.readouterr().out
    assert "label: column 'label' (by its name)" in output
    assert "clients: 3, as column 'who' names them" in output
    assert "float32 2, 2 classes" in output
    assert main(["partition", *table]) == 2
    assert "column 'who' holds words, such as 'person 0'" in capsys.readouterr().err
    assert main(["partition", *table, "--feature-columns=-who"]) == 0


def test_a_table_is_read_as_on_a_device_of_a_bundle(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("w,label\n1,2\n")
    table = ["--data", "table", "--data-path", str(tmp_path / "a.csv"), "--bundle", "digits-wrn-10-1"]
    assert main(["partition", *table, "--out", str(tmp_path / "p.png")]) == 2
    assert (
        "another number of features than the task's input: 1 (w), expected (1, 8, 8)"
        in capsys.readouterr().err
    )


def test_samples_of_numbers_are_said_to_be_divided_by_tenths(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("w,price\n" + "".join(f"{i},{i}.5\n" for i in range(40)))
    table = ["--data", "table", "--data-path", str(tmp_path / "a.csv"), "--devices", "2"]
    assert main(["partition", *table, "--out", str(tmp_path / "p.png")]) == 0
    output = capsys.readouterr().out
    assert "label: column 'price' (it is the last): numbers, as targets" in output
    assert "divided, and counted as classes, by tenths of price" in output
