import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.errors import ExportError
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks import transformers as networks
from device_runtime.models.torch_modules.parameters import find_head, load_weights

TINY = {"vocabulary": 30, "length": 8, "dim": 16, "depth": 3, "heads": 2}
KINDS = [("distilbert", 0), ("roberta", 1), ("opt", 1)]
EVERY = [("bert", 0), *KINDS]
WORDS = {"words": "5,7", "mask": 4}
LANGUAGE_MODELS = {
    "distilbert": "DistilBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "opt": "OPTForCausalLM",
}


def _built(name, **more):
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    return getattr(networks, name)(**TINY, **more).eval()


def _answering(name):
    return _built(name, **{key: WORDS[key] for key in WORDS if name != "opt" or key == "words"})


def _language_model(name):
    library = pytest.importorskip("transformers")
    config = _built(name).model.config
    torch.manual_seed(7)
    return getattr(library, LANGUAGE_MODELS[name])(config).eval()


@pytest.mark.parametrize(("name", "padding"), KINDS)
def test_logits_are_the_librarys_with_its_own_mask(name, padding):
    module = _built(name)
    x = torch.randint(2, 30, (3, 8))
    x[0, 5:] = padding
    expected = module.model(input_ids=x, attention_mask=(x != padding).long()).logits
    torch.testing.assert_close(module(x), expected)


def test_berts_logits_are_the_head_on_the_mean_over_the_tokens_of_the_librarys_last_layer():
    module = _built("bert")
    x = torch.randint(1, 30, (3, 8))
    x[0, 5:] = 0
    states = module.model.bert(input_ids=x, attention_mask=(x != 0).long()).last_hidden_state
    means = torch.stack([states[0, :5].mean(0), states[1].mean(0), states[2].mean(0)])
    torch.testing.assert_close(module(x), module.model.classifier(means))


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_the_file_of_a_sentence_encoder_or_of_a_whole_bert_loads_with_a_new_head(prefix, tmp_path):
    library = pytest.importorskip("transformers")
    module = _built("bert")
    torch.manual_seed(7)
    donor = library.BertModel(module.model.bert.config).state_dict()
    donor = {k: v.clone() for k, v in donor.items()}
    state = {prefix + k: v.half() for k, v in donor.items()}  # with a pooler, in float16
    torch.save(state, tmp_path / "w.pt")
    head = module.model.classifier.weight.clone()
    load_weights(module, tmp_path / "w.pt", skip_head=find_head(module, None))
    assert torch.equal(module.model.classifier.weight, head)
    for key, value in module.model.bert.state_dict().items():
        assert torch.equal(value, donor[key].half().float()), key


@pytest.mark.parametrize(("name", "padding"), EVERY)
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


@pytest.mark.parametrize("name", ["distilbert", "roberta"])
def test_a_language_models_checkpoint_loads_with_a_new_head(name, tmp_path):
    """Published ones have a head for words, a pooler or position ids, and no layer before the classifier."""
    module, donor = _built(name), _language_model(name)
    state = {k: v.clone() for k, v in donor.state_dict().items()}
    state[f"{name}.embeddings.position_ids"] = torch.arange(8).unsqueeze(0)
    if name == "roberta":
        state["roberta.pooler.dense.weight"] = torch.zeros(16, 16)
    torch.save(state, tmp_path / "w.pt")
    head, between = find_head(module, None), f"model.{module.checkpoints.absent[0]}.weight"
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ExportError, match=r"4 missing \((pre_classifier|classifier\.dense)\.weight, "):
        load_weights(module, tmp_path / "w.pt")
    load_weights(module, tmp_path / "w.pt", skip_head=head)
    for key, value in module.state_dict().items():
        assert torch.equal(value, state.get(key.removeprefix("model."), before[key])), key
    assert {k for k in before if k.removeprefix("model.") not in state} == {
        f"{part}.{tensor}" for part in (head, between.rpartition(".")[0]) for tensor in ("weight", "bias")
    }


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_classifiers_checkpoint_gives_the_layer_before_its_head_too(prefix, tmp_path):
    donor, module = _built("roberta"), _built("roberta")
    with torch.no_grad():
        for value in donor.parameters():
            value.add_(1)
    torch.save({prefix + k: v for k, v in donor.model.state_dict().items()}, tmp_path / "w.pt")
    head = module.model.classifier.out_proj.weight.clone()
    load_weights(module, tmp_path / "w.pt", skip_head="model.classifier.out_proj")
    assert torch.equal(module.model.classifier.dense.weight, donor.model.classifier.dense.weight)
    assert torch.equal(module.model.classifier.out_proj.weight, head)
    load_weights(module, tmp_path / "w.pt")
    assert torch.equal(module.model.classifier.out_proj.weight, donor.model.classifier.out_proj.weight)


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


@pytest.mark.parametrize(("name", "padding"), KINDS)
def test_words_are_answered_with_the_language_models_own_logits(name, padding, tmp_path):
    module, donor = _answering(name), _language_model(name)
    with torch.no_grad():
        for value in donor.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    torch.save(donor.state_dict(), tmp_path / "w.pt")
    load_weights(module, tmp_path / "w.pt")
    x = torch.randint(8, 30, (3, 8))
    x[0, 5:] = padding
    x[:, 2] = 4  # the mask
    at = torch.tensor([4, 7, 7]) if name == "opt" else torch.tensor([2, 2, 2])
    logits = donor(input_ids=x, attention_mask=(x != padding).long()).logits[torch.arange(3), at]
    torch.testing.assert_close(module(x), logits[:, [5, 7]])


def test_a_text_without_a_mask_is_answered_at_its_last_token():
    module = _answering("roberta")
    x = torch.tensor([[9, 8, 7, 1, 1], [9, 8, 7, 6, 1]])
    states = module.model.roberta(input_ids=x, attention_mask=(x != 1).long())[0]
    torch.testing.assert_close(module(x), module.model.lm_head(states[torch.arange(2), [2, 3]]))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_both_forms_of_published_opt_files_are_read(prefix, tmp_path):
    module, donor = _answering("opt"), _language_model("opt")
    state = {
        prefix + n.removeprefix("model."): v for n, v in donor.state_dict().items() if n != "lm_head.weight"
    }
    torch.save(state, tmp_path / "w.pt")
    load_weights(module, tmp_path / "w.pt")
    rows = donor.model.decoder.embed_tokens.weight[[5, 7]]
    assert module.model.lm_head.weight.equal(rows)


def test_a_file_without_the_language_models_head_is_refused_for_words(tmp_path):
    module, donor = _answering("roberta"), _language_model("roberta")
    torch.save({k: v for k, v in donor.state_dict().items() if "lm_head" not in k}, tmp_path / "w.pt")
    with pytest.raises(ExportError, match=r"5 missing \(lm_head.dense.weight"):
        load_weights(module, tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": "5"}, "expected a different id for each"),
        ({"words": "5,5", "mask": 4}, "expected a different id for each"),
        ({"words": "5,30", "mask": 4}, "expected ids from 0 to 29"),
        ({"words": "5,7"}, "mask is -1, expected the id"),
    ],
)
def test_words_that_are_no_ids_of_their_own_are_refused(settings, message):
    pytest.importorskip("transformers")
    with pytest.raises(ValueError, match=message):
        networks.roberta(**TINY, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_every_graph_of_one_that_answers_with_words_passes_the_gate(name, tmp_path):
    spec = ExportSpec(name, InputSpec(shape=(8,), dtype="int64", vocabulary=30), ("a", "b"))
    bundle = export(_answering(name), spec, tmp_path / name)
    assert {"train.all", "loss.head"} <= bundle.manifest.graphs.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", *LANGUAGE_MODELS])
def test_every_graph_passes_the_gate(name, tmp_path):
    spec = ExportSpec(name, InputSpec(shape=(8,), dtype="int64", vocabulary=30), ("a", "b"))
    bundle = export(_built(name), spec, tmp_path / name)
    assert {"train.all", "train.mid", "train.head"} <= bundle.manifest.graphs.keys()
