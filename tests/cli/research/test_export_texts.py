import argparse

import msgspec
import numpy as np
import pytest

from device_runtime.cli.research import export
from device_runtime.models.bundles.bundle import Bundle, unpack
from device_runtime.models.errors import BundleError, ExportError

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from device_runtime.models.text import vocabulary
from device_runtime.models.text.file import encode

PROMPT = "{text} It was{mask} ."


def parsed(*words) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    return parser.parse_args([*map(str, words), "--labels", "no,yes", "--out", "out"])


def reading(*words):
    return export.texts_and_settings(parsed(*words))


@pytest.fixture
def learn(reviews):
    def words(network, *more, length=16):
        return network, "--input", length, "--tokenizer-from", reviews, "--tokens", 330, *more

    return words


def test_a_prompt_is_fixed_ids_around_the_text(learn, reviews):
    texts, settings = reading(*learn("roberta", "--prompt", PROMPT, "--words", " terrible, great"))
    file = vocabulary.learn_tokenizer(vocabulary.texts_of(reviews), "byte-pairs/1", 330)
    ids, names = file.tokenizer().ids, file.vocabulary
    assert texts.text.before == (names["<s>"],)
    assert texts.text.after == (*ids(" It was"), names["<mask>"], *ids(" ."), names["</s>"])
    assert (texts.text.padding, texts.text.template) == (1, PROMPT)
    assert texts.text.words == (" terrible", " great")
    assert settings == {
        "vocabulary": 330, "classes": 2, "length": 16, "mask": names["<mask>"],
        "words": ",".join(str(names[word]) for word in ("Ġterrible", "Ġgreat")),
    }  # fmt: skip


def test_a_mask_takes_the_space_before_it(learn):
    close, apart = (
        reading(*learn("roberta", "--prompt", prompt))[0].text.after
        for prompt in (PROMPT, "{text} It was {mask} .")
    )
    assert close == apart


def test_each_network_frames_texts_in_its_own_way(learn):
    for network, before, after, padding in (("distilbert", 1, 1, 0), ("opt", 1, 0, 1), ("gru", 0, 0, 0)):
        text = reading(*learn(network))[0].text
        assert (len(text.before), len(text.after), text.padding) == (before, after, padding)
    texts, settings = reading(*learn("opt", "--prompt", "{text} It was", "--words", " terrible, great"))
    assert "mask" not in settings
    assert texts.text.before == (2,)  # </s>


def test_what_is_set_beats_what_follows_and_there_may_be_more_ids_than_tokens(learn):
    _, settings = reading(*learn("roberta"), "--set", "vocabulary=400", "--set", "length=64")
    assert (settings["vocabulary"], settings["length"]) == (400, 64)


@pytest.mark.parametrize(
    ("network", "more", "message"),
    [
        ("roberta", ("--set", "vocabulary=300"), "the tokenizer has 330 ids, the network 300"),
        ("roberta", ("--vocabulary", 300), "the tokenizer has 330 ids, the network 300"),
        ("roberta", ("--vocabulary", 350, "--set", "vocabulary=360"), "the network has 360"),
        ("roberta", ("--set", "vocabulary=many"), "vocabulary is 'many', expected a number"),
        ("wrn", (), "wrn takes no texts; lstm, gru, bert, distilbert, roberta, opt do"),
        ("roberta", ("--prompt", "It was{mask}"), "one {text}, and at most one {mask}"),
        ("opt", ("--prompt", PROMPT), "one {text}, and no {mask}"),
        ("roberta", ("--words", " terrible, great"), "--words need a --prompt with a {mask}"),
        ("roberta", ("--prompt", PROMPT, "--words", " great"), "expected a different one for each"),
        ("roberta", ("--prompt", PROMPT, "--words", " great, unheard"), "the word ' unheard' is no"),
        ("distilbert", ("--prompt", PROMPT, "--words", "great,日"), "the word '日' is no single token"),
        ("gru", ("--prompt", "{text} was", "--words", "terrible,great"), "gru is no language model"),
        (
            "roberta",
            ("--prompt", PROMPT, "--words", " terrible, great", "--new-head"),
            "omit --new-head",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_of_one_line(learn, network, more, message):
    with pytest.raises(ExportError) as caught:
        reading(*learn(network, *more))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_of_texts_need_a_tokenizer(reviews, tmp_path):
    with pytest.raises(ExportError, match="--prompt is for texts: give --tokenizer or --tokenizer-from"):
        reading("roberta", "--input", 8, "--prompt", PROMPT)
    with pytest.raises(ExportError, match="are both given"):
        reading("roberta", "--input", 8, "--tokenizer", tmp_path, "--tokenizer-from", reviews)


def test_a_tokenizer_of_another_network_is_refused(reviews, tmp_path):
    pieces = vocabulary.learn_tokenizer(vocabulary.texts_of(reviews), "word-pieces/1", 300)
    (tmp_path / "tokenizer.json").write_bytes(encode(pieces))
    with pytest.raises(ExportError, match="the tokenizer fills up with id 0, the network with 1"):
        reading("roberta", "--input", 8, "--tokenizer", tmp_path)
    bare = msgspec.structs.replace(
        pieces, added_tokens=(), model=msgspec.structs.replace(pieces.model, vocab={"[UNK]": 0})
    )
    (tmp_path / "tokenizer.json").write_bytes(encode(bare))
    with pytest.raises(ExportError, match=r"the tokenizer has no \[CLS\]"):
        reading("distilbert", "--input", 8, "--tokenizer", tmp_path)


@pytest.mark.slow
def test_a_folder_says_the_sizes_and_has_weights_and_tokenizer(reviews, tmp_path, monkeypatch):
    library = pytest.importorskip("transformers")
    file = vocabulary.learn_tokenizer(vocabulary.texts_of(reviews), "byte-pairs/1", 330)
    config = library.RobertaConfig(
        vocab_size=350, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=34, type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    donor = library.RobertaForMaskedLM(config)
    donor.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(encode(file))
    words = (
        "--weights",
        tmp_path,
        "--tokenizer",
        tmp_path,
        "--prompt",
        PROMPT,
        "--words",
        " terrible, great",
    )
    args = parsed("roberta", "--input", 16, *words)
    _, settings = export.texts_and_settings(args)
    assert (settings["vocabulary"], settings["length"], settings["depth"]) == (350, 32, 3)
    module = export.build(args, settings)
    rows = [file.vocabulary[word] for word in ("Ġterrible", "Ġgreat")]
    assert module.model.lm_head.decoder.weight.equal(donor.roberta.embeddings.word_embeddings.weight[rows])
    with pytest.raises(ExportError, match="config.json is of model_type 'roberta', expected opt"):
        reading("opt", "--input", 16, "--weights", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ExportError, match="has none of model.safetensors, pytorch_model.bin"):
        export.build(args, settings)


@pytest.mark.slow
def test_a_bundle_keeps_its_tokenizer_through_the_zip(text_bundle, tmp_path):
    again = unpack(text_bundle.packed(), tmp_path / "again")
    assert again.sha256 == text_bundle.sha256
    ids = again.texts.ids(["a great film", ""])
    assert np.array_equal(ids, text_bundle.texts.ids(["a great film", ""]))
    text = again.manifest.input.text
    assert ids.shape == (2, 24)
    assert ids[1].tolist() == [*text.before, *text.after, *[text.padding] * (24 - 1 - len(text.after))]
    long = text_bundle.texts.ids(["film " * 100])[0].tolist()
    assert long[-len(text.after) :] == list(text.after)
    assert text.padding not in long


def test_a_tokenizer_that_is_damaged_or_gone_is_no_bundle(text_bundle, tmp_path):
    folder = unpack(text_bundle.packed(), tmp_path / "b").path
    data = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(data.replace(b"great", b"grand"))
    with pytest.raises(BundleError, match="tokenizer.json of bundle reviews is damaged"):
        Bundle.open(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match="tokenizer.json of bundle reviews is missing"):
        Bundle.open(folder)


def test_the_torch_engine_builds_the_same_network_anew(text_bundle, reviews):
    from device_runtime.models.available_engines.available import EngineSettings, open_model

    x = text_bundle.texts.ids(vocabulary.texts_of(reviews)[:9])
    ours, theirs = (open_model(text_bundle, EngineSettings(engine=name)) for name in ("onnxruntime", "torch"))
    assert np.allclose(ours.logits(x), theirs.logits(x), atol=1e-5)


def test_too_few_tokens_for_every_byte_are_refused(reviews):
    with pytest.raises(ExportError, match="--tokens is 100, expected 270 to"):
        reading("roberta", "--input", 8, "--tokenizer-from", reviews, "--tokens", 100)


def test_inspect_says_how_texts_are_read(text_bundle, capsys):
    from device_runtime.cli import main

    assert main(["inspect", str(text_bundle.path)]) == 0
    description = "read as '{text} It was{mask} .', answered by ' terrible', ' great'"
    assert f"texts as 24 tokens (byte-pairs/1), {description}" in capsys.readouterr().out
