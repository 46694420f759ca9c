"""A device in a task with smaller models: which of them it fetches, trains and sends."""

import msgspec
import numpy as np
import pytest

from device_runtime.broker.wire.blobs import blob_of
from device_runtime.broker.wire.messages import Base, Get, Member
from device_runtime.models.bundles import tensors
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.prototypes import Prototypes

SMALLER = Prototypes(beta=0, members=("another",), epochs=1)


@pytest.fixture
def offer(stage, another):
    """An offer of training the smaller model, whose base is that of its bundle, moved by `by`."""

    def make(number, by=0.0, names=("another",), **changes):
        weights = {name: value + np.float32(by) for name, value in another.weights().items()}
        packed, base = another.packed(), tensors.encode(weights)
        stage.contents |= {blob_of(packed).sha: packed, blob_of(base).sha: base}
        family = tuple(
            Member(each, blob_of(packed), Base(checkpoint=(blob_of(base),), sha=blob_of(base).sha))
            for each in names
        )
        kinds = (registry.write(SMALLER),) if number else ()
        return stage.offer(number, **{"kinds": kinds, "family": family, **changes})

    return make


@pytest.mark.slow
def test_a_device_trains_the_smaller_model_whose_base_it_has_already(stage, offer):
    """In the lobby it fetches the main model; what it then needs of the smaller one may all be here."""
    stage.link.announce(offer(0))
    stage.go()
    for number, by in ((1, 0.0), (2, 0.0), (3, 0.25), (4, 0.25)):
        stage.link.announce(offer(number, by))
        stage.go()
    assert [(c.round, c.form) for c in stage.contributions] == [(n, "another") for n in (1, 2, 3, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [("",), ("another", ""), ("another", "another")])
def test_a_family_in_which_two_have_one_name_is_ignored(stage, offer, names):
    """The main model's own name is the empty one."""
    stage.link.announce(offer(1, names=names))
    stage.go()
    assert stage.contributions == []
    stage.link.announce(offer(2))
    stage.go()
    assert [(c.round, c.form) for c in stage.contributions] == [(2, "another")]


@pytest.mark.slow
@pytest.mark.parametrize("of", ["main", "member"])
def test_a_base_without_a_checkpoint_is_ignored(stage, offer, of, caplog):
    good = offer(1)
    [member] = good.family
    empty = Base(checkpoint=(), sha=good.base.sha)
    family = (msgspec.structs.replace(member, base=empty),)
    stage.link.announce(offer(1, **({"base": empty} if of == "main" else {"family": family})), unasked=False)
    stage.go()
    assert stage.contributions == []
    assert "no checkpoint" in caplog.text
    stage.link.announce(offer(2))
    stage.go()
    assert [(c.round, c.form) for c in stage.contributions] == [(2, "another")]


@pytest.mark.slow
def test_what_a_base_has_of_the_bundle_is_looked_for_once(stage, offer, another, monkeypatch):
    """It takes reading and hashing the whole model: not at each look while the rest is fetched."""
    looks, weights_of = [], type(another).weights
    monkeypatch.setattr(type(another), "weights", lambda bundle: looks.append(bundle) or weights_of(bundle))
    moved = offer(1, 0.25)
    looks.clear()
    stage.contents.pop(moved.family[0].base.checkpoint[0].sha)  # it never comes
    monkeypatch.setattr(stage.link, "_answer", lambda message: None)
    for blob in (moved.bundle, moved.family[0].bundle):
        stage.agent.runner.blobs.put(stage.contents[blob.sha])
    stage.link.announce(moved, unasked=False)
    stage.go(ticks=30)
    assert stage.link.of(Get)
    assert len(looks) <= 2


@pytest.mark.slow
def test_a_new_main_base_is_asked_for_at_once_where_there_is_a_family(stage, offer):
    """Nothing comes unasked there; the clock stands still, so that no patience can run out."""
    weights = {name: value + np.float32(0.5) for name, value in stage.bundle.weights().items()}
    body = tensors.encode(weights)
    stage.contents[blob_of(body).sha] = body
    main = (registry.write(Prototypes(beta=0, epochs=1)),)
    stage.link.announce(offer(1))
    stage.go()
    base = Base(checkpoint=(blob_of(body),), sha=blob_of(body).sha)
    stage.link.announce(offer(2, base=base, kinds=main), unasked=False)
    stage.go()
    assert [(c.round, c.form) for c in stage.contributions] == [(1, "another"), (2, "")]
