"""FedAT against algorithm 3 of thesis 002, on a family of two networks and real digits."""

from dataclasses import replace

import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles import tensors
from device_runtime.models.errors import BundleError
from device_runtime.models.training.optimizer import Sgd
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.aggregator_half import CarriedState
from device_runtime.strategies.interface.device_half import LocalData, Update
from device_runtime.strategies.kinds.attention_transfer import AttentionTransfer
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.training import local_training, teaching
from device_runtime.strategies.training.teaching import ServerTraining, TeacherAttention
from device_runtime.strategies.training.workload import workload

KIND = AttentionTransfer(members=("small",), epochs=2, lr=0.1, batch=16, server_batch=32, beta=960.0)


@pytest.fixture
def generic(family) -> LocalData:
    return LocalData(family.data.x[:96], family.data.y[:96])


@pytest.fixture
def client(family) -> LocalData:
    return LocalData(family.data.x[96:], family.data.y[96:])


@pytest.fixture
def small(family) -> OnnxModel:
    return OnnxModel(family.bundles["small"])


@pytest.mark.slow
def test_a_device_sends_its_weights_and_maps_of_a_tenth_of_its_samples_by_the_updated_model(
    small, client, run
):
    sent = KIND.train(small, client, run())
    maps, counts = sent.tensors["metadata.maps"], sent.tensors["metadata.counts"]
    assert (maps.shape, counts.sum(), sent.num_examples, sent.variant) == ((15, 6, 8, 8), 15, 144, "small")
    small.load({name: sent.tensors[name] for name in small.manifest.names()})
    every = small.level_features(client.x, "low")
    labels = np.repeat(np.arange(10), counts)
    for row, label in zip(maps, labels, strict=True):
        same = np.abs(every - row).max((1, 2, 3)) < 1e-5
        assert label in client.y[same]


def test_the_weights_sent_are_those_of_plain_local_epochs(small, client, run):
    sent = KIND.train(small, client, run())
    plan = local_training.TrainingPlan(Sgd(0.1, 0.5, 1e-5), 2, 16, np.arange(len(client)))
    plain = local_training.train(small, client, plan, run())
    assert all(np.array_equal(sent.tensors[name], value) for name, value in plain.tensors.items())


def test_training_leaves_the_distributed_model_as_it_was_and_is_what_is_expected(small, client, run):
    before = tensors.encode(small.weights)
    first, second = (KIND.train(small, client, run()) for _ in range(2))
    assert tensors.encode(small.weights) == before
    assert tensors.encode(first.tensors) == tensors.encode(second.tensors)
    tensors.check(first.tensors, KIND.expected(small.manifest))
    assert KIND.rejection_reason(first.tensors, first.num_examples) == ""


def test_metadata_is_never_more_than_was_agreed(small, client, run):
    few = replace(KIND, metadata_share=1.0, max_metadata=20)
    sent = few.train(small, client, run())
    assert len(sent.tensors["metadata.maps"]) == 20
    tensors.check(sent.tensors, few.expected(small.manifest))
    sample = LocalData(client.x[:1], client.y[:1])
    assert len(KIND.train(small, sample, run()).tensors["metadata.maps"]) == 1


def test_metadata_that_does_not_add_up_is_doubted():
    maps, counts = np.zeros((3, 6, 8, 8), np.float32), np.array([1, 0, 2], np.int32)
    update = {"metadata.maps": maps, "metadata.counts": counts}
    assert KIND.rejection_reason(update, 3) == ""
    assert KIND.rejection_reason(update, 2) == "metadata has 3 maps, but only 2 samples"
    wrong = {**update, "metadata.counts": np.array([4, 0, -1], np.int32)}
    assert KIND.rejection_reason(wrong, 3) == "metadata has 3 maps, but the counts by class are 4, 0, -1"


def test_the_predicted_upload_is_within_a_tenth_of_what_is_sent(small, client, run):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    cost = KIND.cost(workload(small.manifest, client.class_counts(10)), profile)
    body = tensors.encode(KIND.train(small, client, run()).tensors)
    assert cost.bytes_up == pytest.approx(len(body) + 120, rel=0.1)


def finished(model, sent, kind=KIND):
    state = kind.start(model)
    for update in sent:
        state = kind.fold(state, update, update.num_examples)
    return kind.finish(state, model)


def steps_written_out(family, generic, sent: Update, seed: int, distance: str = "squared"):
    """Steps 1 to 3 for one client: equations 5.13, 5.15 and 5.16."""
    main, small = (OnnxModel(family.bundles[name]) for name in ("", "small"))
    small.load({name: sent.tensors[name] for name in small.manifest.names()})
    maps = {}
    for level in ("low", "mid", "up"):
        q = np.square(small.level_features(generic.x, level)).sum(1)
        maps[level] = q.reshape(len(q), -1)
    rng, places = teaching.generator(seed, "attention-transfer", 0), {"low": 64, "mid": 16, "up": 16}

    def lesson(levels, **more):
        divided = {level: 60 / n if distance == "squared" else 0.5 for level, n in places.items()}
        beta = {level: value if level in levels else 0.0 for level, value in divided.items()}
        name = "attention" if distance == "squared" else "attention-norm"
        return ServerTraining(Sgd(0.1), 2, 32, objective=name, extras=TeacherAttention(maps, beta), **more)

    first = teaching.teach(main, family.bundles[""].weights(), generic, lesson(maps), rng)
    rows, counts = sent.tensors["metadata.maps"], sent.tensors["metadata.counts"]
    data = LocalData(np.zeros((len(rows), 1, 8, 8), np.float32), np.repeat(np.arange(10), counts))
    upper = ServerTraining(Sgd(0.1), 2, 32, "mid", "above-low", lambda batch: {"maps": rows[batch]})
    second = teaching.teach(main, first, data, upper, rng)
    constants = tuple(name for name in second if not name.startswith("low"))
    return first, second, teaching.teach(main, second, generic, lesson(("low",), constants=constants), rng)


def test_a_copy_goes_through_the_three_steps(family, generic, client, small, run):
    sent = KIND.train(small, client, run())
    model = family.round(generic)
    copy = finished(model, [sent]).mean.mean()
    first, second, third = steps_written_out(family, generic, sent, model.seed)
    for name, value in copy.items():
        np.testing.assert_allclose(value, third[name], atol=1e-6)
        upper = not name.startswith("low")
        assert np.array_equal(first[name], second[name]) != upper, "step 2 trains what is above alone"
        assert np.array_equal(second[name], third[name]) == upper, "step 3 trains what is not"


def test_by_the_norm_beta_stays_as_it_is_at_every_level(family, generic, client, small, run):
    """Equation 5.14 to the letter: beta * sum_levels of norms."""
    kind = replace(KIND, distance="norm", beta=0.5)
    sent = kind.train(small, client, run())
    model = family.round(generic)
    copy = finished(model, [sent], kind).mean.mean()
    *_, third = steps_written_out(family, generic, sent, model.seed, "norm")
    for name, value in copy.items():
        np.testing.assert_allclose(value, third[name], atol=1e-6)


def test_the_next_global_model_is_the_mean_of_the_copies_by_samples(family, generic, client, small, run):
    """Equation 5.18 with 100 and 44 samples; `share` weighs a copy beside other kinds' updates."""
    sizes = (100, 44)
    parts = [LocalData(client.x[:100], client.y[:100]), LocalData(client.x[100:], client.y[100:])]
    sent = [KIND.train(small, part, run(f"pi-{i}")) for i, part in enumerate(parts)]
    model = family.round(generic)
    effect = finished(model, sent)
    state = KIND.start(model)
    first = KIND.fold(state, sent[0], 1.0).copies.mean()
    second = KIND.fold(replace(KIND.start(model), clients=1), sent[1], 1.0).copies.mean()
    for name, value in effect.mean.mean().items():
        mean = (sizes[0] * first[name].astype(np.float64) + sizes[1] * second[name]) / 144
        np.testing.assert_allclose(value, mean, atol=1e-6)
    assert effect.num_examples == 144
    assert finished(model, sent, replace(KIND, share=0.25)).num_examples == 36


def test_beside_full_updates_copies_join_the_mean_and_members_learn_from_the_base_of_both(
    family, generic, client, small, run
):
    main = OnnxModel(family.bundles[""])
    model, kind = family.round(generic), replace(KIND, share=0.5)
    effect = finished(model, [kind.train(small, client, run())], kind)
    full = FedAvg(epochs=1).train(main, client, run())
    whole = FedAvg().finish(FedAvg().start(model).add(full.tensors, 144.0), model)
    merged = merge(model, {"full": whole, kind.name: effect}, carried=CarriedState(family=model.family))
    copy = effect.mean.mean()
    for name, value in merged.base.items():
        np.testing.assert_allclose(value, (full.tensors[name] + 0.5 * copy[name]) / 1.5, atol=1e-6)
    taught, alone = merged.carried.family["small"], effect.teach(copy)["small"]
    assert all(
        np.array_equal(taught[name], value) for name, value in effect.teach(merged.base)["small"].items()
    )
    assert not all(np.array_equal(taught[name], value) for name, value in alone.items())


def test_members_pay_attention_to_the_new_global_model(family, generic, client, small, run):
    """Equation 5.19, from the mean of the members' clients."""
    model = family.round(generic)
    sent = KIND.train(small, client, run())
    effect = finished(model, [sent])
    base = effect.mean.mean()
    tensors = effect.teach(base)["small"]
    main = OnnxModel(family.bundles[""])
    main.load(base)
    maps = {
        level: np.square(main.level_features(generic.x, level)).sum(1).reshape(96, -1)
        for level in ("low", "mid", "up")
    }
    extras = TeacherAttention(maps, {"low": 60 / 64, "mid": 60 / 16, "up": 60 / 16})
    lesson = ServerTraining(Sgd(0.1), 2, 32, objective="attention", extras=extras)
    start = {name: sent.tensors[name] for name in small.manifest.names()}
    rng = teaching.generator(model.seed, "attention-transfer:members", 0)
    expected = teaching.teach(small, start, generic, lesson, rng)
    for name, value in expected.items():
        np.testing.assert_allclose(tensors[name], value, atol=1e-5)


def test_a_round_with_the_same_seed_gives_the_same_bits(family, generic, client, small, run):
    sent = KIND.train(small, client, run())
    first_effect, second_effect = (finished(family.round(generic), [sent]) for _ in range(2))
    assert tensors.encode(first_effect.mean.mean()) == tensors.encode(second_effect.mean.mean())
    other = finished(family.round(generic, number=2), [sent])
    assert tensors.encode(first_effect.mean.mean()) != tensors.encode(other.mean.mean())


def test_a_copy_that_diverges_is_left_out_and_a_member_that_does_stays_its_clients_mean(
    family, generic, client, small, run
):
    sent = KIND.train(small, client, run())
    model = family.round(generic)
    with np.errstate(over="ignore", invalid="ignore"):
        effect = finished(model, [sent], replace(KIND, server_lr=3e38))
        taught = effect.teach(model.weights)["small"]
    assert effect.mean.mean() == {}
    for name in small.manifest.names():
        np.testing.assert_allclose(taught[name], sent.tensors[name], atol=1e-7)


def test_what_a_round_without_clients_does_is_nothing(family, generic):
    effect = finished(family.round(generic), [])
    assert (effect.mean, effect.teach, effect.family) == (None, None, {})


def test_without_members_the_main_model_is_what_devices_train(family, generic, client, run):
    kind = replace(KIND, members=())
    sent = kind.train(OnnxModel(family.bundles[""]), client, run())
    effect = finished(family.round(generic), [sent], kind)
    assert (kind.member, sent.variant) == ("", "")
    assert effect.mean.mean().keys() == set(family.bundles[""].manifest.names())
    assert effect.teach(family.bundles[""].weights()) == {}


def test_each_member_is_a_form_the_richest_first():
    kind = AttentionTransfer(members=("wrn-34-1", "wrn-10-1"))
    assert [(form.variant, form.member) for form in kind.variants()] == [("wrn-34-1",) * 2, ("wrn-10-1",) * 2]
    assert AttentionTransfer().variants() == (AttentionTransfer(),)


def test_what_is_missing_on_the_aggregator_is_said(family, bundle, generic):
    manifests = {"": family.bundles[""].manifest, "small": family.bundles["small"].manifest}
    KIND.check_bundles(manifests)
    with pytest.raises(BundleError, match="small has no graph attention.all"):
        KIND.check_bundles({**manifests, "small": _without(manifests["small"], "attention.all")})
    with pytest.raises(
        BundleError, match="main has no graph above-mid.up: export it with --objective above-mid --tunable up"
    ):
        replace(KIND, level="mid").check_bundles(manifests)
    with pytest.raises(ValueError, match="attention-transfer needs a generic data set"):
        KIND.start(family.round(None))


def _without(manifest, graph: str):
    import msgspec

    graphs = {name: entry for name, entry in manifest.graphs.items() if name != graph}
    return msgspec.structs.replace(manifest, graphs=graphs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metadata_share": 0.0}, "metadata_share is 0.0, expected more than 0 to 1"),
        ({"members": ("a", "a")}, "members are a, a: one is empty or named twice"),
        ({"server_lr": 0.0}, "server_lr is 0.0, expected more than 0"),
        ({"max_metadata": 0}, "max_metadata is 0, expected 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AttentionTransfer(**settings)


@pytest.mark.slow
def test_classes_that_the_generic_set_lacks_are_learnt(wide_family, run):
    """Seven and nine are on the clients alone (thesis 002, table 5.8)."""
    from sklearn.datasets import load_digits

    raw, lacking = load_digits(), (7, 9)
    order = np.random.default_rng(0).permutation(len(raw.target))
    x = wide_family.bundles[""].manifest.input.prepare(raw.images[order][:, None])
    y = raw.target[order].astype(np.int64)
    here = np.flatnonzero(~np.isin(y[:500], lacking))
    kind = replace(
        KIND, epochs=8, lr=0.05, momentum=0.9, batch=64, metadata_share=1.0,
        server_batch=16, server_epochs=5, metadata_epochs=5,
    )  # fmt: skip
    model = wide_family.round(LocalData(x[here], y[here]))
    small, main = OnnxModel(wide_family.bundles["small"]), OnnxModel(wide_family.bundles[""])
    for seed in (11, 22, 33):
        model, state = replace(model, seed=seed), kind.start(replace(model, seed=seed))
        for at in (500, 700, 900, 1100):
            small.load(model.family["small"])
            part = LocalData(x[at : at + 200], y[at : at + 200])
            state = kind.fold(state, kind.train(small, part, run(f"pi-{at}", seed)), 200.0)
        merged = merge(
            model, {kind.name: kind.finish(state, model)}, carried=CarriedState(family=model.family)
        )
        model = replace(model, weights=merged.base, family=merged.carried.family)
    main.load(model.weights)
    right = main.logits(x[1300:]).argmax(1) == y[1300:]
    rare = np.isin(y[1300:], lacking)
    assert right[rare].mean() > 0.25
    assert right.mean() > 1 - rare.mean(), "more than whoever never says seven or nine can have right"
