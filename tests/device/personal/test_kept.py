import msgspec
import numpy as np
import pytest

from device_runtime.device.personal import kept as module
from device_runtime.device.personal.kept import FOLDER, NothingKept, PersonalModelStore, RoundEvaluation
from device_runtime.models.training.heads import Evaluation


@pytest.fixture
def keeper(tmp_path):
    return PersonalModelStore(tmp_path)


def moved(bundle, by):
    return {name: value + np.float32(by) for name, value in bundle.weights().items()}


def head_of(bundle, value):
    names = (bundle.manifest.head.weight, bundle.manifest.head.bias)
    return {name: np.full_like(bundle.weights()[name], value) for name in names}


def files(tmp_path):
    return sorted(path.suffix for path in (tmp_path / FOLDER).iterdir())


def test_what_is_kept_is_read_again_with_its_bundle(keeper, bundle, offer):
    keeper.keep(offer(3, title="Read digits"), bundle, moved(bundle, 1))
    stored = PersonalModelStore(keeper._device).read()
    assert (stored.record.round, stored.record.title) == (3, "Read digits")
    assert stored.bundle.sha256 == bundle.sha256
    assert all(np.array_equal(stored.weights[n], value) for n, value in moved(bundle, 1).items())


def test_only_the_last_model_stays_and_a_head_goes_with_its_model(keeper, bundle, offer, tmp_path):
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    keeper.judge(
        RoundEvaluation(1, Evaluation(0.5, 1.0, 4), Evaluation(0.75, 0.5, 4), True), head_of(bundle, 2)
    )
    assert (keeper.read().weights[bundle.manifest.head.bias] == 2).all()
    assert files(tmp_path) == [".json", ".safetensors", ".safetensors"]
    keeper.keep(offer(2), bundle, moved(bundle, 3))
    assert files(tmp_path) == [".json", ".safetensors"]
    assert np.array_equal(
        keeper.read().weights[bundle.manifest.head.bias], moved(bundle, 3)[bundle.manifest.head.bias]
    )
    assert [figures.round for figures in keeper.read().record.rounds] == [1]


def test_the_same_model_in_another_round_keeps_its_head(keeper, bundle, offer):
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    keeper.judge(RoundEvaluation(1, kept=True), head_of(bundle, 2))
    keeper.keep(offer(2), bundle, moved(bundle, 1))
    assert keeper.read().record.head


def test_figures_of_another_run_go_and_those_of_a_round_that_was_overtaken_are_not_written(
    keeper, bundle, offer
):
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    keeper.judge(RoundEvaluation(1), None)
    keeper.judge(RoundEvaluation(7), head_of(bundle, 2))
    assert [figures.round for figures in keeper.read().record.rounds] == [1]
    keeper.keep(offer(1, run="s"), bundle, moved(bundle, 1))
    assert keeper.read().record.rounds == ()


def test_at_most_a_hundred_rounds_are_remembered(keeper, bundle, offer, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROUNDS", 3)
    for number in range(1, 6):
        keeper.keep(offer(number), bundle, moved(bundle, 1))
        keeper.judge(RoundEvaluation(number), None)
    assert [figures.round for figures in keeper.read().record.rounds] == [3, 4, 5]


@pytest.mark.parametrize("last", ["weights", "record"])
def test_a_power_cut_at_any_write_leaves_the_model_before(keeper, bundle, offer, monkeypatch, last):
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    real = module.replace_file

    def cut(path, data):
        if (path.suffix == ".json") == (last == "record"):
            raise OSError("the power is gone")
        real(path, data)

    monkeypatch.setattr(module, "replace_file", cut)
    with pytest.raises(OSError, match="the power is gone"):
        keeper.keep(offer(2), bundle, moved(bundle, 2))
    stored = PersonalModelStore(keeper._device).read()
    assert stored.record.round == 1
    assert all(np.array_equal(stored.weights[n], value) for n, value in moved(bundle, 1).items())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"bundle": 3}'])
def test_a_damaged_record_is_said_and_replaced_by_the_next_round(keeper, bundle, offer, tmp_path, content):
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    (tmp_path / FOLDER / "model.json").write_bytes(content)
    with pytest.raises(NothingKept, match="cannot be read"):
        keeper.read()
    keeper.keep(offer(2), bundle, moved(bundle, 1))
    assert keeper.read().record.round == 2


def test_damaged_weights_and_another_version_are_said(keeper, bundle, offer, tmp_path):
    with pytest.raises(NothingKept, match="no model is kept in .*: join a task first"):
        keeper.read()
    keeper.keep(offer(1), bundle, moved(bundle, 1))
    [weights] = (tmp_path / FOLDER).glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(NothingKept, match="cannot be read: 100 bytes are not safetensors"):
        keeper.read()
    record = msgspec.structs.replace(keeper.record(), version=9)
    (tmp_path / FOLDER / "model.json").write_bytes(msgspec.json.encode(record))
    with pytest.raises(NothingKept, match="is of version 9, this software knows 1"):
        keeper.read()
