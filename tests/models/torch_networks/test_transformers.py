import pytest

torch = pytest.importorskip("torch")

from models.errors import ExportError  # noqa: E402
from models.manifest import InputSpec  # noqa: E402
from models.torch_export import ExportSpec, export  # noqa: E402
from models.torch_networks import transformers as networks  # noqa: E402

TINY = {"vocabulary": 30, "length": 8, "dim": 16, "depth": 3, "heads": 2}
KINDS = [("distilbert", 0), ("roberta", 1)]


def _built(name):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(networks, name)(**TINY).eval()


@pytest.mark.parametrize(("name", "padding"), KINDS)
def test_logits_are_the_librarys_with_its_own_mask(name, padding):
    module = _built(name)
    x = torch.randint(2, 30, (3, 8))
    x[0, 5:] = padding
    expected = module.model(input_ids=x, attention_mask=(x != padding).long()).logits
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(("name", "padding"), KINDS)
def test_padding_behind_a_text_changes_nothing(name, padding):
    module = _built(name)
    x = torch.randint(2, 30, (2, 5))
    torch.testing.assert_close(module(x), module(torch.nn.functional.pad(x, (0, 3), value=padding)))


def test_every_parameter_has_a_level_and_the_librarys_name():
    distil, roberta = _built("distilbert"), _built("roberta")
    assert distil.level_outputs["up"] == "model.distilbert.transformer.layer.2"
    assert "model.distilbert.embeddings.word_embeddings.weight" in distil.state_dict()
    assert "model.roberta.encoder.layer.0.attention.self.query.weight" in roberta.state_dict()
    for module in (distil, roberta):
        assert all(any(n.startswith(f"{p}.") for p in module.levels) for n in module.state_dict())


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setattr(networks, "LIBRARY", "no_such_library")
    with pytest.raises(ExportError, match="needs no_such_library; pip install no_such_library"):
        networks.distilbert()


def test_sizes_that_do_not_fit_are_refused():
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="depth is 2"):
        networks.distilbert(depth=2)
    with pytest.raises(ValueError, match="3 heads do not divide a width of 16"):
        networks.roberta(dim=16, heads=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distilbert", "roberta"])
def test_every_graph_passes_the_gate(name, tmp_path):
    spec = ExportSpec(name, InputSpec(shape=(8,), dtype="int64", vocabulary=30), ("a", "b"))
    bundle = export(_built(name), spec, tmp_path / name)
    assert {"train.all", "train.mid", "train.head"} <= bundle.manifest.graphs.keys()
