"""FedKAD and FedMD against algorithm 4 of thesis 002, on a family of two networks and real digits."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.errors import BundleError
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import LocalData, Update
from device_runtime.strategies.kinds.prototypes import Prototypes, local_prototypes
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.training import teaching
from device_runtime.strategies.training.teaching import ServerTraining
from device_runtime.strategies.training.workload import workload

KAD = Prototypes(members=("small",), epochs=2, batch=16, generic_samples=96, server_batch=32)
MD = replace(KAD, beta=0.0)


@pytest.fixture
def generic(family) -> LocalData:
    return LocalData(family.data.x[:96], family.data.y[:96])


@pytest.fixture
def clients(family) -> list[LocalData]:
    """100 samples of classes 0 to 6, and 44 of all."""
    data = family.data
    few = np.flatnonzero(data.y[96:] < 7)[:80] + 96
    return [LocalData(data.x[few], data.y[few]), LocalData(data.x[196:], data.y[196:])]


@pytest.fixture
def small(family) -> OnnxModel:
    return OnnxModel(family.bundles["small"])


def sent_by(kind, small, clients, run) -> list[Update]:
    return [kind.train(small, data, run(f"pi-{i}")) for i, data in enumerate(clients)]


def finished(model, sent, kind=KAD):
    state = kind.start(model)
    for update in sent:
        state = kind.fold(state, update, update.num_examples)
    return kind.finish(state, model)


@pytest.mark.slow
def test_prototypes_are_the_mean_maps_of_each_class_and_0_where_there_is_none(small, clients, monkeypatch):
    monkeypatch.setattr(teaching, "BLOCK", 33)
    data = clients[0]
    prototypes = local_prototypes(small, data)
    maps = small.level_features(data.x, "up")
    assert prototypes["counts"].tolist() == np.bincount(data.y, minlength=10).tolist()
    for label in range(7):
        expected = maps[data.y == label].mean(0, dtype=np.float64)
        np.testing.assert_allclose(prototypes["prototypes"][label], expected, atol=1e-6)
    assert not prototypes["prototypes"][7:].any()


def test_a_class_with_fewer_samples_than_the_smallest_count_has_no_prototype(small, clients):
    rows = np.concatenate(
        [np.flatnonzero(clients[0].y == label)[:n] for label, n in ((0, 1), (1, 2), (2, 3))]
    )
    prototypes = local_prototypes(small, LocalData(clients[0].x[rows], clients[0].y[rows]), 2)
    assert prototypes["counts"].tolist() == [0, 2, 3] + [0] * 7
    assert np.flatnonzero(prototypes["prototypes"].reshape(10, -1).any(axis=1)).tolist() == [1, 2]


def test_a_device_sends_its_weights_and_prototypes_by_the_updated_model(small, clients, run):
    before = tensors.encode(small.weights)
    sent = KAD.train(small, clients[0], run())
    assert tensors.encode(small.weights) == before
    tensors.check(sent.tensors, KAD.expected(small.manifest))
    assert (KAD.rejection_reason(sent.tensors, sent.num_examples), sent.variant) == ("", "small")
    small.load({name: sent.tensors[name] for name in small.manifest.names()})
    expected = local_prototypes(small, clients[0])["prototypes"]
    assert np.array_equal(sent.tensors["prototypes"], expected)


def test_fedmd_sends_weights_alone(small, clients, run):
    sent, with_maps = (kind.train(small, clients[0], run()) for kind in (MD, KAD))
    assert set(sent.tensors) == set(small.manifest.names())
    assert all(np.array_equal(with_maps.tensors[name], value) for name, value in sent.tensors.items())
    tensors.check(sent.tensors, MD.expected(small.manifest))
    assert MD.rejection_reason(sent.tensors, 80) == ""


@pytest.mark.parametrize("kind", [KAD, MD])
def test_the_predicted_upload_is_within_a_tenth_of_what_is_sent(kind, small, clients, run):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    cost = kind.cost(workload(small.manifest, clients[0].class_counts(10)), profile)
    body = tensors.encode(kind.train(small, clients[0], run()).tensors)
    assert cost.bytes_up == pytest.approx(len(body) + 120, rel=0.1)


def test_prototypes_that_do_not_add_up_are_doubted():
    maps, counts = np.zeros((3, 2, 1, 1), np.float32), np.array([2, 0, 1], np.int32)
    assert KAD.rejection_reason({"prototypes": maps, "counts": counts}, 3) == ""
    assert (
        KAD.rejection_reason({"prototypes": maps, "counts": counts}, 4) == ""
    )  # a class was too small to be sent
    assert (
        KAD.rejection_reason({"prototypes": maps, "counts": counts}, 2)
        == "counts are 2, 0, 1, num_examples is 2"
    )
    maps[1, 1] = 0.5
    assert "prototype of class 1 is not 0" in KAD.rejection_reason({"prototypes": maps, "counts": counts}, 3)


def lesson_written_out(family, sent, generic, kind) -> tuple[ServerTraining, LocalData]:
    """Equations 5.22, 5.23 and 5.26: plain means over the clients, of those that have the class."""
    small = OnnxModel(family.bundles["small"])
    chosen = teaching.generator(78, "prototypes", 0).choice(96, 96, replace=False)
    drawn = LocalData(generic.x[chosen], generic.y[chosen])
    logits = []
    for update in sent:
        small.load({name: update.tensors[name] for name in small.manifest.names()})
        logits.append(small.logits(drawn.x).astype(np.float64))
    target = np.mean(logits, axis=0).astype(np.float32)
    fixed = {}
    if kind.beta:
        maps = np.stack([update.tensors["prototypes"] for update in sent]).astype(np.float64)
        having = np.stack([update.tensors["counts"] > 0 for update in sent])
        mean = [maps[having[:, c], c].mean(0) for c in range(10)]
        beta = np.array(kind.beta / 10)
        fixed = {"prototypes": np.array(mean, np.float32), "present": np.ones(10), "beta": beta}
    name = "prototype" if kind.beta else "distil"
    extras = lambda batch: {"target": target[batch], **fixed}  # noqa: E731
    return ServerTraining(Sgd(0.1), 5, 32, "all", name, extras), drawn


def test_a_batch_weighs_means_over_logits_and_over_prototypes(family, generic, small, clients, run):
    """Equations 5.24 and 5.27, both divided by their terms: 4 samples * 10 logits, and 10 prototypes."""
    kind, model = replace(KAD, beta=0.5), family.round(generic)
    sent = sent_by(kind, small, clients, run)
    state = kind.start(model)
    for update in sent:
        state = kind.fold(state, update, update.num_examples)
    main, batch = OnnxModel(family.bundles[""]), np.arange(4)
    main.load(model.weights)
    apart = np.abs(main.logits(state.drawn.x[batch]) - state.logits[batch] / 2).sum()
    features = (state.prototypes / state.present[:, None, None, None]).mean((2, 3))
    logits = features @ model.weights["head.weight"].T + model.weights["head.bias"]
    of_classes = (np.log(np.exp(logits).sum(1)) - np.diag(logits)).sum()
    lesson = kind._training(state)
    trainer = main.trainer("all", lesson.objective, 0)
    loss = trainer.loss_and_grads(state.drawn.x[batch], state.drawn.y[batch], lesson.extras(batch))
    assert loss == pytest.approx(apart / (4 * 10) + 0.5 * of_classes / 10, rel=1e-5)


@pytest.mark.parametrize("kind", [KAD, MD])
def test_the_global_model_and_the_members_learn_the_consensus(family, generic, small, clients, run, kind):
    sent = sent_by(kind, small, clients, run)
    model = family.round(generic)
    effect = finished(model, sent, kind)
    lesson, drawn = lesson_written_out(family, sent, generic, kind)
    main, base = OnnxModel(family.bundles[""]), model.weights
    expected = teaching.teach(main, base, drawn, lesson, teaching.generator(78, "prototypes:", 1))
    merged = merge(model, {kind.name: effect}, carried=CarriedState(family=model.family))
    for name, value in expected.items():
        np.testing.assert_allclose(merged.base[name], value, atol=1e-4)
        assert not np.array_equal(value, base[name])
    sizes = [len(data) for data in clients]
    start = {
        name: (
            (sizes[0] * sent[0].tensors[name].astype(np.float64) + sizes[1] * sent[1].tensors[name])
            / sum(sizes)
        ).astype(np.float32)
        for name in small.manifest.names()
    }
    taught = teaching.teach(small, start, drawn, lesson, teaching.generator(78, "prototypes:small", 1))
    for name, value in taught.items():
        np.testing.assert_allclose(merged.carried.family["small"][name], value, atol=1e-4)


def test_a_class_that_nobody_has_counts_nothing(family, generic, small, clients, run):
    """Whatever stands for its prototype."""
    sent = KAD.train(small, clients[0], run())
    model = family.round(generic)
    state = KAD.fold(KAD.start(model), sent, 1.0)
    changed = state.prototypes.copy()
    changed[7:] = 5.0
    first, two = (
        KAD.finish(s, model).refine(model.weights) for s in (state, replace(state, prototypes=changed))
    )
    assert all(np.array_equal(first[name], two[name]) for name in first)


def test_prototypes_teach_what_the_consensus_leaves_out(family, generic, small, clients, run):
    """FedKAD's classifier puts its classes' prototypes in their classes better than FedMD's does."""
    heavy = replace(KAD, epochs=20, beta=5.0)
    sent = sent_by(heavy, small, clients, run)
    bare = [replace(u, tensors={n: u.tensors[n] for n in small.manifest.names()}) for u in sent]
    model = family.round(generic)
    refined = finished(model, sent, heavy).refine(model.weights)
    plain = finished(model, bare, MD).refine(model.weights)
    maps = np.stack([update.tensors["prototypes"] for update in sent]).sum(0)
    having = np.stack([update.tensors["counts"] > 0 for update in sent]).sum(0)

    def right(weights) -> int:
        features = (maps / having[:, None, None, None]).mean((2, 3))
        logits = features @ weights["head.weight"].T + weights["head.bias"]
        return int((logits.argmax(1) == np.arange(10)).sum())

    assert right(refined) > right(plain)


def test_beside_other_kinds_the_merged_base_is_refined_and_share_says_how_far(
    family, generic, small, clients, run
):
    model = family.round(generic)
    sent = [KAD.train(small, clients[0], run())]
    base = {name: value + np.float32(0.01) for name, value in model.weights.items()}
    whole, part = (finished(model, sent, replace(KAD, share=s)).refine(base) for s in (1.0, 0.25))
    for name, value in part.items():
        np.testing.assert_allclose(value, 0.75 * base[name] + 0.25 * whole[name], atol=1e-6)
    from_distributed = finished(model, sent).refine(model.weights)
    assert not all(np.array_equal(whole[name], value) for name, value in from_distributed.items())


def test_a_model_that_diverges_stays_as_it_was(family, generic, small, clients, run):
    model = family.round(generic)
    sent = [KAD.train(small, clients[0], run())]
    with np.errstate(over="ignore", invalid="ignore"):
        effect = finished(model, sent, replace(KAD, server_lr=3e38, beta=5.0))
        refined = effect.refine(model.weights)
    assert all(np.array_equal(refined[name], model.weights[name]) for name in refined)
    for name in small.manifest.names():
        np.testing.assert_allclose(effect.family["small"][name], sent[0].tensors[name], atol=1e-7)


def test_each_round_draws_its_own_generic_samples(family, generic):
    few = replace(KAD, generic_samples=20)
    first, again, other = (few.start(family.round(generic, number=n)).drawn for n in (1, 1, 2))
    assert (len(first), np.array_equal(first.x, again.x), np.array_equal(first.x, other.x)) == (
        20,
        True,
        False,
    )
    assert len(KAD.start(family.round(generic)).drawn) == 96


def test_what_a_round_without_clients_does_is_nothing(family, generic):
    effect = finished(family.round(generic), [])
    assert (effect.refine, effect.family) == (None, {})


def test_what_is_missing_on_the_aggregator_is_said(family, generic):
    main, small = (family.bundles[name].manifest for name in ("", "small"))
    KAD.check_bundles({"": main, "small": small})
    graphs = {name: graph for name, graph in small.graphs.items() if name != "prototype.all"}
    bare = msgspec.structs.replace(small, graphs=graphs)
    with pytest.raises(BundleError, match="small has no graph prototype.all: export it with --objective"):
        KAD.check_bundles({"": main, "small": bare})
    MD.check_bundles({"": main, "small": bare})
    odd = msgspec.structs.replace(small, features={**small.features, "up": (10, 2, 2)})
    with pytest.raises(
        BundleError,
        match=r"level up must have one shape in a family: main gives \(10, 4, 4\), small \(10, 2, 2\)",
    ):
        KAD.check_bundles({"": main, "small": odd})
    with pytest.raises(ValueError, match="prototypes needs a generic data set"):
        KAD.start(family.round(None))


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="share is 0.0, expected more than 0 to 1"):
        Prototypes(share=0.0)
    with pytest.raises(ValueError, match="beta is -1.0, expected 0 or more"):
        Prototypes(beta=-1.0)
