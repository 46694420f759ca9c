"""What a device sends by a codec, and what it keeps of it, whenever its process ends."""

import numpy as np
import pytest

from device_runtime.models.bundles import tensors
from device_runtime.strategies.codecs.chain import codec_named
from device_runtime.strategies.kinds import registry

WORD = "delta+int8+deflate"
SETTINGS = {"shots": 2, "epochs": 1, "codec": WORD}


def offer(stage, number, seed, word=WORD):
    kind = registry.make("few-shot", {**SETTINGS, "codec": word})
    return stage.offer(number, kinds=(registry.write(kind),), seed=seed)


def round_of(stage, number, seed, word=WORD):
    """The body that is sent."""
    stage.link.announce(offer(stage, number, seed, word))
    stage.go()
    return stage.contributions[-1].body


@pytest.mark.slow
def test_what_rounding_leaves_out_of_an_update_is_kept_and_comes_with_the_next(stage):
    base, specs = stage.bundle.weights(), registry.make("few-shot").expected(stage.bundle.manifest)
    sent = [codec_named(WORD).decode(round_of(stage, number, seed=number), base, specs) for number in (1, 2)]
    exact = [tensors.decode(round_of(stage, number + 2, seed=number, word="")) for number in (1, 2)]
    first = codec_named(WORD).rounded(exact[0], base, {})
    second = codec_named(WORD).rounded(exact[1], base, first.left)
    for name, value in first.read.items():
        np.testing.assert_array_equal(sent[0][name], value)
        np.testing.assert_array_equal(sent[1][name], second.read[name])
    head = stage.bundle.manifest.head.weight
    assert first.left[head].any()
    assert not np.array_equal(sent[1][head], codec_named(WORD).rounded(exact[1], base, {}).read[head])


@pytest.mark.slow
@pytest.mark.parametrize("status", ["refused", "late"])
@pytest.mark.parametrize("restarts", [False, True], ids=["", "in a new life"])
def test_what_was_to_come_with_an_update_that_does_not_count_comes_with_the_next(stage, status, restarts):
    """Of rounds 1 to 3, the second of which does not count: the third is sent as if that had not been."""
    base, specs = stage.bundle.weights(), registry.make("few-shot").expected(stage.bundle.manifest)
    round_of(stage, 1, seed=1)
    stage.link.receipts = False
    round_of(stage, 2, seed=2)
    if restarts:
        stage.start(boot=2)
        stage.link.receipts = False
        stage.go()
    stage.link.receipt(stage.contributions[-1], status)
    stage.link.receipts = True
    sent = codec_named(WORD).decode(round_of(stage, 3, seed=3), base, specs)
    exact = [tensors.decode(round_of(stage, number + 9, seed=number, word="")) for number in (1, 3)]
    first = codec_named(WORD).rounded(exact[0], base, {})
    third = codec_named(WORD).rounded(exact[1], base, first.left)
    for name, value in third.read.items():
        np.testing.assert_array_equal(sent[name], value)


@pytest.mark.slow
def test_an_update_that_turns_out_late_when_the_next_is_made_doubles_nothing(stage):
    """Rounds 1 and 2 are made before round 1's receipt comes; all that counts arrives with round 3."""
    base, specs = stage.bundle.weights(), registry.make("few-shot").expected(stage.bundle.manifest)
    stage.link.receipts = False
    sent = [codec_named(WORD).decode(round_of(stage, number, seed=number), base, specs) for number in (1, 2)]
    for message, status in zip(stage.contributions, ("late", "accepted"), strict=True):
        stage.link.receipt(message, status)
    stage.link.receipts = True
    sent.append(codec_named(WORD).decode(round_of(stage, 3, seed=3), base, specs))
    exact = [tensors.decode(round_of(stage, number + 9, seed=number, word="")) for number in (2, 3)]
    name = stage.bundle.manifest.head.weight
    arrived, whole = sent[1][name] + sent[2][name], exact[0][name] + exact[1][name]
    alone = codec_named(WORD).rounded({name: exact[1][name]}, base, {}).left[name]
    np.testing.assert_allclose(whole - arrived, np.zeros_like(whole), atol=1.01 * np.abs(alone).max())


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_device_killed_as_it_keeps_a_coded_update_sends_the_very_same(stage, monkeypatch, where):
    """In round 2, before the update is on disk: it is made again, with what was left out of round 1's."""
    messages = []
    round_of(stage, 1, seed=1)
    with monkeypatch.context() as dying:
        add = stage.agent.runner.outbox.add

        def die(message):
            messages.append(message)
            if where == "after":
                add(message)
            raise Killed

        dying.setattr(stage.agent.runner.outbox, "add", die)
        stage.link.announce(offer(stage, 2, seed=2))
        with pytest.raises(Killed):
            stage.go()
    stage.start(boot=2)
    assert round_of(stage, 2, seed=2) == messages[0].body


@pytest.mark.slow
def test_a_coded_update_is_smaller(stage):
    coded, plain = round_of(stage, 1, seed=1), round_of(stage, 2, seed=1, word="")
    assert len(coded) < 0.45 * len(plain)
