import argparse
import sys

import numpy as np
import pytest

from device_runtime.cli.research import export
from device_runtime.models.bundles import tensors
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import WindowInput
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.errors import ExportError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return parser.parse_args(words)


PLACE = ("--input", "1,8,8", "--labels", "0,1", "--out", "out")
WRN = "device_runtime.models.networks.convolutional:wrn"


@pytest.mark.slow
def test_a_bundle_that_is_there_is_overwritten_only_where_that_is_asked_for(tmp_path):
    folder = tmp_path / "pets"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    words = (WRN, "--input", "1,8,8", "--labels", "0,1", "--out", str(folder))
    with pytest.raises(ExportError, match=f"{folder} is a bundle already: --overwrite replaces it"):
        export.run(parsed(*words))
    assert (folder / "manifest.json").read_text() == "{}"
    assert export.run(parsed(*words, "--set", "in_channels=1", "--set", "classes=2", "--overwrite")) == 0
    assert Bundle.open(folder).manifest.name == "pets"


def test_a_folder_with_other_things_is_not_written_into(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    words = (WRN, "--input", "1,8,8", "--labels", "0,1", "--out", str(tmp_path), "--overwrite")
    with pytest.raises(ExportError, match="exists and is no bundle: give another --out"):
        export.run(parsed(*words))
    with pytest.raises(ExportError, match="exists and is no bundle"):
        export.check_free(tmp_path / "letter.txt", True)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "empty").mkdir()
    export.check_free(tmp_path / "empty", False)


def test_missing_torch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ExportError, match=r"needs the extra torch: pip install 'device-runtime\[torch\]'"):
        export.run(parsed(WRN, *PLACE))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere:net",), "nowhere:net cannot be imported"),
        (("device_runtime.models.networks.convolutional:net",), "cannot be imported"),
        ((WRN, "--set", "depth"), "'depth' is not NAME=VALUE"),
        ((WRN, "--set", "depth=11"), "depth is 11"),
        ((WRN, "--set", "height=11"), "unexpected keyword argument 'height'"),
        (("collections:Counter",), "gives a Counter, expected a torch.nn.Module"),
        (("resnet1",), "no network 'resnet1'; known are linear, mlp, cnn, wrn, squeezenet"),
        (("wrn", "--set", "height=11"), "wrn takes no setting height; it takes depth, width"),
        (("wrn", "--set", "depth=11"), "wrn with depth=11 fails: depth is 11"),
        ((WRN, "--weights", "nowhere.safetensors"), r"nowhere.safetensors cannot be read"),
        ((WRN, "--new-head"), "--new-head is for --weights"),
        ((WRN, "--set", "depth=10", "--set", "depth=16"), "depth is given twice, as 10 and as 16"),
        ((WRN, "--seed", "-1"), "--seed is -1, expected 0 to 9223372036854775807"),
    ],
)
def test_wrong_words_are_one_line_errors(words, message):
    pytest.importorskip("torch")
    with pytest.raises(ExportError, match=message) as caught:
        export.build(parsed(*words, *PLACE))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [
        (
            "3,8,8",
            "a,b",
            r"fails on \(4, 3, 8, 8\).*; cnn has in_channels=3, size=32, classes=10, width=1: make",
        ),
        ("1,32,32", "a,b", r"; cnn has in_channels=3, .* fit an input of 1,32,32 and 2 labels with --set"),
        ("3,32,32", "a,b", r"head head gives 10 logits for 2 labels; cnn has .* classes=10"),
    ],
)
def test_a_network_whose_settings_are_not_those_of_the_input_is_said_with_both(
    tmp_path, capsys, shape, labels, message
):
    pytest.importorskip("torch")
    words = ("cnn", "--input", shape, "--labels", labels, "--out", str(tmp_path / "out"))
    with pytest.raises(ExportError, match=message):
        export.run(parsed(*words))
    assert not (tmp_path / "out").exists()


def test_weights_of_a_file_are_loaded_and_others_refused(tmp_path):
    torch = pytest.importorskip("torch")
    words = (WRN, "--set", "in_channels=1", *PLACE)
    module = export.build(parsed(*words))
    state = {name: np.full(w.shape, 0.5, np.float32) for name, w in module.state_dict().items()}
    file = tmp_path / "w.safetensors"
    file.write_bytes(tensors.encode(state))
    loaded = export.build(parsed(*words, "--weights", str(file)))
    assert all(torch.all(w == 0.5) for w in loaded.state_dict().values())
    assert export.spec(parsed(*words, "--weights", str(file))).pretrained
    assert export.spec(parsed(*words, "--pretrained")).pretrained
    assert not export.spec(parsed(*words)).pretrained
    file.write_bytes(tensors.encode({"stranger": np.zeros(1, np.float32)}))
    with pytest.raises(
        ExportError, match=r"does not fit WideResNet: 25 missing .*; 1 not expected \(stranger"
    ):
        export.build(parsed(*words, "--weights", str(file)))


def test_weights_of_other_labels_are_loaded_without_the_head(tmp_path):
    torch = pytest.importorskip("torch")
    wide = export.build(parsed("wrn", *PLACE, "--seed", "1", "--set", "classes=12"))
    file = tmp_path / "w.pt"
    torch.save(wide.state_dict(), file)
    words = ("wrn", *PLACE, "--set", "classes=2", "--weights", str(file))
    with pytest.raises(
        ExportError, match=r"2 of another shape \(head.weight is \(12, 64\), expected \(2, 64\)"
    ):
        export.build(parsed(*words))
    module = export.build(parsed(*words, "--new-head"))
    assert module.head.weight.equal(export.build(parsed("wrn", *PLACE, "--set", "classes=2")).head.weight)
    assert module.conv1.weight.equal(wide.conv1.weight)


def test_networks_of_ours_are_named_in_the_bundle_with_their_settings():
    pytest.importorskip("torch")
    spec = export.spec(parsed("wrn", *PLACE, "--set", "depth=16", "--set", "norm=batch"))
    assert spec.source == Source("wrn", {"depth": 16, "norm": "batch"})


def test_files_of_the_exporting_machine_are_not_named_in_the_bundle():
    pytest.importorskip("torch")
    spec = export.spec(parsed("gru", *PLACE, "--set", "hidden=8", "--set", "vectors=/home/me/glove.npy"))
    assert spec.source == Source("gru", {"hidden": 8})


@pytest.mark.parametrize("words", [(), ("--scaled-features",)])
def test_features_have_a_scale_where_it_is_asked_for(words):
    pytest.importorskip("torch")
    assert export.spec(parsed("wrn", *PLACE, *words)).scaled == bool(words)


def test_feature_maps_of_other_places_are_left_to_the_graphs():
    """The torch engine would build the network anew, with its own level_outputs."""
    pytest.importorskip("torch")
    spec = export.spec(parsed("wrn", *PLACE, "--output", "low=conv1"))
    assert spec.source is None
    assert spec.outputs == {"low": "conv1"}


@pytest.mark.slow
def test_a_bundle_without_set_all_is_written_and_its_sets_are_counted(tmp_path, capsys):
    """The head of this network: 64 weights for each of 2 labels, and 2 biases."""
    pytest.importorskip("onnx")
    words = (
        "wrn",
        "--set",
        "in_channels=1",
        "--set",
        "classes=2",
        *PLACE[:4],
        "--out",
        str(tmp_path / "out"),
    )
    assert export.run(parsed(*words, "--tunable", "head")) == 0
    assert "values trained: head 130; sha256 " in capsys.readouterr().out


def test_seed_decides_the_weights():
    pytest.importorskip("torch")
    first, same, other = (export.build(parsed(WRN, *PLACE, "--seed", s)).conv1.weight for s in "001")
    assert first.equal(same)
    assert not first.equal(other)


def test_numbers_and_levels_are_read_from_the_words():
    pytest.importorskip("torch")
    spec = export.spec(
        parsed(WRN, "--input", "2,8,8", *PLACE[2:], "--mean", "0.5,1", "--level", "a=low", "--level", "b=up")
    )
    assert spec.input.mean == (0.5, 1.0)
    assert spec.levels == {"a": "low", "b": "up"}
    assert spec.name == "out"
    assert spec.source is None
    with pytest.raises(ExportError, match="'1,x' are not numbers"):
        export.spec(parsed(WRN, "--input", "1,x", "--labels", "0", "--out", "o"))


def test_a_mean_may_be_negative_in_words_of_its_own():
    pytest.importorskip("torch")
    words = ("--input", "3,8,8", *PLACE[2:], "--mean", "-0.5,1,2", "--std", "-.5,1,2")
    spec = export.spec(parsed(WRN, *words))
    assert (spec.input.mean, spec.input.std) == ((-0.5, 1.0, 2.0), (-0.5, 1.0, 2.0))


def test_mean_and_std_may_be_those_of_the_training_samples(tmp_path):
    """Columns 1, 3, 5 and 7, 7, 7, times 2: means 6 and 14, deviations 2 * sqrt(8 / 3), and 1 for none."""
    pytest.importorskip("torch")
    (tmp_path / "train.csv").write_text("label,a,b\n0,1,7\n1,3,7\n0,5,7\n")
    words = ("--input", "2", "--labels", "0,1", "--out", "o", "--scale", "2")
    spec = export.spec(parsed(WRN, *words, "--standardise", str(tmp_path / "train.csv")))
    assert spec.input.mean == (6.0, 14.0)
    assert spec.input.std == pytest.approx((2 * (8 / 3) ** 0.5, 1.0))
    prepared = spec.input.prepare(np.array([[1, 7], [3, 7], [5, 7]]))
    assert prepared.mean(0) == pytest.approx([0, 0], abs=1e-6)
    with pytest.raises(ExportError, match="give neither"):
        export.spec(parsed(WRN, *words, "--mean", "1", "--standardise", str(tmp_path / "train.csv")))


def test_channels_of_recordings_are_standardised_over_all_windows(tmp_path):
    """Windows of rows 0 to 1 and 1 to 2: x is 1, 3, 3, 5 with mean 3 and variance 2; t is not a channel."""
    pytest.importorskip("torch")
    (tmp_path / "p1" / "sit").mkdir(parents=True)
    (tmp_path / "p1" / "sit" / "1.csv").write_text("t,x,y\n0,1,7\n1,3,7\n2,5,7\n")
    words = ("--input", "2,2", "--labels", "sit,run", "--out", "o", "--window-step", "1", "--columns", "x,y")
    spec = export.spec(parsed("cnn1d", *words, "--standardise", str(tmp_path)))
    assert spec.input.window == WindowInput(1, ("x", "y"))
    at_50 = export.spec(parsed("cnn1d", *words, "--rate", "50")).input.window
    assert at_50 == WindowInput(1, ("x", "y"), rate=50.0)
    assert at_50.description(2).endswith("one every 1, 50 time steps a second")
    assert spec.input.mean == (3.0, 7.0)
    assert spec.input.std == pytest.approx((2**0.5, 1.0))


def test_windows_may_have_numbers_as_targets_also_ahead(tmp_path):
    """Targets of rows 1 and 2, which are 30 and 50; one step ahead only of row 2."""
    pytest.importorskip("torch")
    (tmp_path / "a.csv").write_text("x,y,life\n1,7,10\n3,7,30\n5,7,50\n")
    words = ("--input", "2,2", "--labels", "life", "--out", "o", "--window-step", "1", "--loss", "mse")
    spec = export.spec(parsed("cnn1d", *words, "--standardise", str(tmp_path / "a.csv")))
    assert spec.loss.mean == (40.0,)
    ahead = export.spec(parsed("cnn1d", *words, "--horizon", "1"))
    assert ahead.input.window == WindowInput(1, (), 1)
    with pytest.raises(ExportError, match="--horizon is for targets that are numbers: give --loss mse"):
        export.spec(parsed("cnn1d", *words[:-2], "--horizon", "1"))


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--horizon", "2"), "--horizon is of recordings: give --window-step, too"),
        (("--window-step", "4", "--horizon", "0"), "--horizon is 0, expected 1 or more time steps ahead"),
        (("--rate", "50"), "--rate is of recordings: give --window-step, too"),
        (("--window-step", "4", "--rate", "0"), "--rate is 0, expected more than 0 and at most 1e"),
        (("--columns", "x"), "--columns are those of recordings: give --window-step, too"),
        (("--window-step", "0"), "--window-step is 0, expected 1 or more"),
        (("--window-step", "4"), r"input is float32 \(1, 8, 8\), expected windows \(channels, length\)"),
        (
            ("--input", "2,8", "--window-step", "4", "--columns", "x"),
            "columns are x, expected 2 different ones",
        ),
    ],
)
def test_windows_that_do_not_fit_are_refused(words, refused):
    pytest.importorskip("torch")
    with pytest.raises(ExportError, match=refused):
        export.spec(parsed(WRN, *PLACE, *words))


@pytest.mark.parametrize(
    ("x", "what"),
    [(np.zeros((0, 1, 8, 8)), "no samples"), (np.full((2, 1, 8, 8), np.nan), "values that are not finite")],
)
def test_samples_that_give_no_mean_are_said(tmp_path, x, what):
    pytest.importorskip("torch")
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros(len(x), int))
    with pytest.raises(ExportError, match=f"x.npz: it has {what}, expected samples with finite values"):
        export.spec(parsed(WRN, *PLACE, "--standardise", str(tmp_path / "x.npz")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vocabulary", "0"), "--vocabulary holds a size that is not 1 to 2147483648"),
        (("--vocabulary", "-3"), "--vocabulary holds a size that is not 1 to 2147483648"),
        (("--input", "0,8"), "--input 0,8 or --vocabulary holds a size that is not 1 to 2147483648"),
        (("--input", "99999999999"), "--input 99999999999 or --vocabulary holds a size that is not"),
        (("--tunable", "lora:rank=4", "--tunable", "lora:rank=8"), "lora is given twice"),
        (("--level", "a=low", "--level", "a=up"), "a is given twice, as low and as up"),
    ],
)
def test_words_that_cannot_be_meant_are_one_line_errors(words, message):
    pytest.importorskip("torch")
    with pytest.raises(ExportError, match=message) as caught:
        export.spec(parsed(WRN, *PLACE, *words))
    assert "\n" not in str(caught.value)


def test_what_is_asked_for_twice_is_made_once():
    pytest.importorskip("torch")
    twice = ("--objective", "train", "--features", "low", "--precision", "int8") * 2
    spec = export.spec(parsed(WRN, *PLACE, *twice))
    assert (spec.objectives, spec.features, spec.precisions) == (("train",), ("low",), ("int8",))


HOUSES = ("mlp", "--set", "inputs=4", "--set", "classes=2", "--input", "4", "--loss", "mse")


def test_values_are_standardised_by_the_samples_that_are_given(tmp_path):
    (tmp_path / "a.csv").write_text("u,v,w,x,price,area\n1,2,3,4,130,-3\n5,6,7,8,70,3\n")
    words = (*HOUSES, "--labels", "price,area", "--standardise", str(tmp_path / "a.csv"), "--out", "out")
    bundle_spec = export.spec(parsed(*words))
    assert (bundle_spec.labels, bundle_spec.loss.columns) == (("price", "area"), ("price", "area"))
    assert (bundle_spec.loss.mean, bundle_spec.loss.std) == ((100.0, 0.0), (30.0, 3.0))
    assert (bundle_spec.input.mean, bundle_spec.input.std) == ((3.0, 4.0, 5.0, 6.0), (2.0,) * 4)
    own_std = export.spec(parsed(*words, "--target-std", "9"))
    assert (own_std.loss.mean, own_std.loss.std) == ((0.0,), (9.0,))


def test_a_reconstruction_needs_no_labels():
    words = ("autoencoder", "--input", "4", "--loss", "huber", "--targets", "input", "--quantile", "0.9")
    bundle_spec = export.spec(parsed(*words, "--delta", "2", "--out", "out"))
    assert bundle_spec.labels == ("normal", "anomaly")
    assert (bundle_spec.loss.compared, bundle_spec.loss.quantile, bundle_spec.loss.delta) == (
        "input",
        0.9,
        2.0,
    )


def test_a_loss_of_one_s_own_is_read_from_a_file(tmp_path):
    (tmp_path / "own.py").write_text("def pinball(outputs, targets):\n    return outputs[:, 0]\n")
    words = ("mlp", "--input", "4", "--labels", "low,high", "--target-columns", "price", "--out", "out")
    bundle_spec = export.spec(parsed(*words, "--loss", f"{tmp_path}/own.py:pinball"))
    assert (bundle_spec.loss.loss, bundle_spec.loss.own, bundle_spec.loss.columns) == (
        "pinball",
        True,
        ("price",),
    )
    assert bundle_spec.own_loss.__name__ == "pinball"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--labels", "a", "--loss", "square"), "no loss 'square'; there are cross-entropy, mse"),
        (("--loss", "mse"), "--labels is missing: name the classes, or what the network predicts"),
        (
            ("--labels", "a", "--loss", "bce", "--target-mean", "1"),
            "targets are flags: only values have a mean",
        ),
        (("--labels", "a", "--loss", "mse", "--targets", "flags"), "loss 'mse' of flags is none of"),
        (("--labels", "a", "--loss", "mse", "--target-mean", "x"), "'x' are not numbers"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(words, message):
    with pytest.raises(ExportError, match=message):
        export.spec(parsed("mlp", "--input", "4", "--out", "out", *words))
