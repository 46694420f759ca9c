"""A kind of one's own under updates that its author did not think of."""

import re
from pathlib import Path

import numpy as np
import pytest

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.strategies import plugins
from device_runtime.strategies.kinds import registry

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kind.py"


@pytest.fixture(autouse=True)
def top_k(monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, "[]")
    yield registry.load(f"{EXAMPLE}:TopK")
    registry.KINDS.pop("top-k", None)


def update(manifest, first, value=1.0):
    """Changes of one value each, from place `first` on."""
    count = registry.make("top-k").count(sum(spec.size for spec in manifest.stored()))
    places = np.arange(first, first + count, dtype=np.int32)
    return {"indices": places, "values": np.full(count, value, np.float32)}, 10


def test_an_update_at_which_the_kind_fails_is_left_out_and_the_round_is_merged(
    bench, make_task, bundle, caplog
):
    b = bench(make_task("top-k", rounds=2, min_contributions=2))
    b.join("a", "b")
    for device, first in (("a", 0), ("b", 10**6)):
        sent = b.contribution("top-k", update(bundle.manifest, first))
        assert [receipt.status for receipt in b.contribute(device, sent)] == ["accepted"]
    assert b.offer.round == 2
    changed = sum(
        int((value != bundle.weights()[name]).sum())
        for name, value in b.weights(b.store.rounds.start(2).base).items()
    )
    assert changed == len(update(bundle.manifest, 0)[0]["values"])
    assert "top-k fails at the update of b" in caplog.text


def test_a_norm_bound_is_of_the_models_that_are_compared(bench, make_task, bundle):
    b = bench(make_task(KindSettings(name="top-k", max_norm=50.0), min_contributions=3))
    b.join("a", "b", "c")
    receipts = [
        b.contribute(device, b.contribution("top-k", update(bundle.manifest, first, value)))[0]
        for device, first, value in (("a", 0, 1.0), ("b", 0, 9.0), ("c", 10**6, 1.0))
    ]
    assert [receipt.status for receipt in receipts] == ["accepted", "refused", "refused"]
    assert "away from the base, at most 50 is accepted" in receipts[1].reason
    assert re.search(
        r"it cannot be compared with the base: .*own_kind\.py:\d+: IndexError", receipts[2].reason
    )
