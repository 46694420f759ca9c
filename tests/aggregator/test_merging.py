"""What a round makes of its contributions, from the files that it keeps."""

import numpy as np

from aggregator.task import KindSettings
from models import tensors


def test_the_order_in_which_contributions_arrive_changes_no_bit(bench, make_task, update_of):
    task = make_task("full", "few-shot", "zeroth-order", "class-means", rounds=2)
    kinds = ["full", "full", "few-shot", "zeroth-order", "class-means"]
    sent = [(f"pi-{i}", kind, update_of(kind, i)) for i, kind in enumerate(kinds)]
    results = set()
    for order in (sent, sent[::-1], sent[2:] + sent[:2]):
        b = bench(task)
        b.join(*(device for device, _, _ in sent))
        for device, kind, update in order:
            assert b.contribute(device, b.contribution(kind, update))[0].status == "accepted"
        results.add((b.store.base(2).sha, b.store.served(1).sha))
    assert len(results) == 1


def test_updates_are_averaged_by_examples_times_the_weight_of_their_kind(bench, make_task, bundle):
    b = bench(make_task(KindSettings(name="full", weight=2.0), KindSettings(name="entropy-subset"), rounds=1))
    weights = bundle.weights()

    def filled(level, value):
        return {n: np.full_like(weights[n], value) for n in bundle.manifest.names(level)}

    b.join("a", "b")
    b.contribute("a", b.contribution("full", (filled("all", 1.0), 10)))
    b.contribute("b", b.contribution("entropy-subset", (filled("mid", 4.0), 40)))
    merged = tensors.decode(b.store.models.get(b.store.base(2).checkpoint))
    upper = set(bundle.manifest.names("mid"))
    for name in bundle.manifest.names("all"):
        # upper: (10 * 2 * 1 + 40 * 4) / (10 * 2 + 40) = 3; below it only the full update
        np.testing.assert_allclose(merged[name], 3.0 if name in upper else 1.0, rtol=1e-6)


def test_a_merge_that_is_done_again_gives_the_same(bench, make_task, update_of):
    b = bench(make_task("full", "zeroth-order", rounds=2))
    b.join("a", "b", "c")
    b.contribute("a", b.contribution("full", update_of("full")))
    b.contribute("b", b.contribution("zeroth-order", update_of("zeroth-order")))
    b.service._rounds.merge(1)
    first = b.store.base(2), b.store.served(1)
    b.service._rounds.merge(1)
    assert (b.store.base(2), b.store.served(1)) == first


def test_a_merge_that_is_not_finite_leaves_the_base_as_it_was_and_says_so(bench, make_task):
    b = bench(make_task(KindSettings(name="zeroth-order", settings={"lr": 1e6}), rounds=1))
    b.join("a")
    before = b.offer.base
    huge = {"g": np.full(2, 3e38, np.float32)}
    b.contribute("a", b.contribution("zeroth-order", (huge, 10)))
    assert b.store.closed()[0].note == "the merged model is not finite: the base stays as it was"
    assert b.store.base(2) == before


def test_after_fifty_steps_there_is_a_new_checkpoint(bench, make_task, update_of):
    b = bench(make_task("zeroth-order", rounds=53))
    b.join("a")
    first = b.offer.base.checkpoint
    for number in range(1, 51):
        b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order", number), number))
    assert (b.offer.base.checkpoint, b.offer.base.steps) == (first, 50)
    b.contribute("a", b.contribution("zeroth-order", update_of("zeroth-order"), 51))
    assert (b.offer.base.steps, b.offer.base.sha) == (0, b.offer.base.checkpoint.sha)
    assert b.offer.base.checkpoint != first


def test_contents_are_forgotten_once_their_round_is_closed_and_what_is_told_stays(
    bench, make_task, update_of
):
    b = bench(make_task("full", "few-shot", rounds=2))
    b.join("a", "b")
    message = b.contribution("full", update_of("full"))
    b.contribute("a", message)
    assert b.store.updates.has(message.blob)
    b.contribute("b", b.contribution("few-shot", update_of("few-shot")))
    assert not b.store.updates.has(message.blob)
    assert [stored.body for stored in b.store.contributions.of_round(1)] == [b"", b""]
    assert [c.device for c in b.store.closed()[0].contributions] == ["b", "a"]  # by kind, then device
