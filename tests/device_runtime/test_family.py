"""A device in a task with smaller models: which of them it fetches, trains and sends."""

import numpy as np
import pytest

from broker.blobs import name
from broker.messages import Base, Member
from models import tensors
from strategies import registry
from strategies.prototypes import Prototypes

SMALLER = Prototypes(beta=0, members=("another",), epochs=1)


@pytest.fixture
def offer(stage, another):
    """An offer of training the smaller model, whose base is that of its bundle, moved by `by`."""

    def make(number, by=0.0, **changes):
        weights = {name: value + np.float32(by) for name, value in another.weights().items()}
        packed, base = another.packed(), tensors.encode(weights)
        stage.contents |= {name(packed).sha: packed, name(base).sha: base}
        member = Member("another", name(packed), Base(checkpoint=(name(base),), sha=name(base).sha))
        kinds = (registry.write(SMALLER),) if number else ()
        return stage.offer(number, **{"kinds": kinds, "family": (member,), **changes})

    return make


def test_a_device_trains_the_smaller_model_whose_base_it_has_already(stage, offer):
    """In the lobby it fetches the main model; what it then needs of the smaller one may all be here."""
    stage.link.announce(offer(0))
    stage.go()
    for number, by in ((1, 0.0), (2, 0.0), (3, 0.25), (4, 0.25)):
        stage.link.announce(offer(number, by))
        stage.go()
    assert [(c.round, c.form) for c in stage.contributions] == [(n, "another") for n in (1, 2, 3, 4)]
