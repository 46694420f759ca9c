"""HeteroFL's narrower parts: cut out, trained, and averaged into their elements of the main model."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.errors import BundleError, TensorError
from device_runtime.models.training.heads import accuracy_and_loss
from device_runtime.profiles import Bandwidth, DeviceProfile, Memory, Power, Speed
from device_runtime.strategies.interface.aggregator_half import RoundModel
from device_runtime.strategies.interface.capabilities import DerivesMembers, NeedsModels
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.kinds.fedavg import FedAvg
from device_runtime.strategies.kinds.width_slice import WidthSlice
from device_runtime.strategies.merging.merge import merge
from device_runtime.strategies.terms.moon import Moon
from device_runtime.strategies.terms.proximal import FedProx
from device_runtime.strategies.training.workload import workload

MEMBERS = ("half", "quarter")


@pytest.fixture(scope="module")
def family(bundle, tmp_path_factory) -> dict[str, Bundle]:
    """The shipped WRN-10-1 and its half."""
    torch = pytest.importorskip("torch")
    from device_runtime.models.export.export import ExportSpec, export
    from device_runtime.models.networks import build

    torch.manual_seed(5)
    module = build("wrn", {"width": 0.5, "in_channels": 1})
    spec = ExportSpec("half", bundle.manifest.input, bundle.manifest.labels, sets={"all": {}})
    return {"": bundle, "half": export(module, spec, tmp_path_factory.mktemp("half") / "bundle")}


@pytest.fixture
def manifests(family):
    """With a quarter, of which there is nothing but its tensors' shapes."""
    half = family["half"].manifest
    wide = {spec.name: spec.shape for spec in family[""].manifest.stored()}
    smaller = [
        msgspec.structs.replace(p, shape=tuple(-(-n * n // wide[p.name][i]) for i, n in enumerate(p.shape)))
        for p in half.parameters
    ]
    quarter = msgspec.structs.replace(half, name="quarter", parameters=tuple(smaller))
    return {"": family[""].manifest, "half": half, "quarter": quarter}


@pytest.fixture
def distributed(family) -> RoundModel:
    return RoundModel(family[""].manifest, family[""].weights(), round=1, seed=7)


def folded(strategy, model, *contributions):
    state = strategy.start(model)
    for sent in contributions:
        state = strategy.fold(state, sent, sent.num_examples)
    return strategy.finish(state, model)


def test_members_are_forms_the_richest_first():
    forms = WidthSlice(members=("", *MEMBERS)).variants()
    assert [(form.member, form.variant) for form in forms] == [
        ("", ""),
        ("half", "half"),
        ("quarter", "quarter"),
    ]
    assert all(form.variants() == (form,) for form in (*forms, WidthSlice()))
    assert WidthSlice().member == ""
    kind = registry.make("width-slice", {"members": ["half"], "terms": {"fedprox": {"mu": 0.1}}})
    assert kind == WidthSlice(members=("half",), terms=(FedProx(0.1),))


@pytest.mark.parametrize(
    "settings, message",
    [({"members": ("a", "a")}, "members are a, a: each can be named once"), ({"epochs": 0}, "epochs is 0")],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        WidthSlice(**settings)


@pytest.mark.slow
def test_the_base_of_a_member_is_the_leading_part_of_the_main_base(manifests, distributed):
    strategy = WidthSlice(members=("", *MEMBERS))
    assert isinstance(strategy, DerivesMembers)
    bases = strategy.derive(distributed.weights, manifests)
    assert bases.keys() == {"half", "quarter"}
    for name, channels in (("half", 8), ("quarter", 4)):
        first = bases[name]["conv1.weight"]
        assert np.array_equal(first, distributed.weights["conv1.weight"][:channels])
        assert bases[name].keys() == {spec.name for spec in manifests[name].stored()}
    assert bases["half"]["head.weight"].shape == (10, 32)


def test_a_member_that_is_no_part_of_the_main_model_is_refused(manifests, distributed):
    swapped = {"": manifests["half"], "half": manifests[""]}
    strategy = WidthSlice(members=("half",))
    for refuse in (
        lambda: strategy.derive(distributed.weights, swapped),
        lambda: strategy.check_bundles(swapped),
    ):
        with pytest.raises(TensorError, match="digits-wrn-10-1 is not a narrower half"):
            refuse()
    strategy.check_bundles(manifests)
    assert isinstance(strategy, NeedsModels)


def test_the_part_of_a_pre_trained_network_has_to_say_that_it_is_one(manifests):
    strategy = WidthSlice(members=("", "half"))
    pretrained = {name: msgspec.structs.replace(m, pretrained=True) for name, m in manifests.items()}
    strategy.check_bundles(pretrained)
    strategy.check_bundles({**manifests, "half": pretrained["half"]})
    with pytest.raises(BundleError, match="part half does not say so: export the part with --pretrained"):
        strategy.check_bundles({**pretrained, "half": manifests["half"]})


def test_a_member_that_was_trained_changes_its_part_and_nothing_else(
    family, manifests, distributed, digits, run
):
    strategy = WidthSlice(members=("half",), epochs=1)
    model = OnnxModel(family["half"])
    model.load(strategy.derive(distributed.weights, manifests)["half"])
    sent = strategy.train(model, digits, run())
    assert (sent.variant, sent.num_examples) == ("half", 240)
    base = merge(distributed, {"width-slice": folded(strategy, distributed, sent)}).base
    for name, value in distributed.weights.items():
        part = tuple(slice(size) for size in sent.tensors[name].shape)
        assert np.array_equal(base[name][part], sent.tensors[name]), name
        untouched = np.ones(value.shape, bool)
        untouched[part] = False
        assert np.array_equal(base[name][untouched], value[untouched]), name
    assert not np.array_equal(base["conv1.weight"], distributed.weights["conv1.weight"])
    cut = strategy.derive(base, manifests)["half"]
    assert all(np.array_equal(cut[name], sent.tensors[name]) for name in sent.tensors)


def test_full_updates_of_the_round_count_in_every_element(manifests, distributed):
    """60 samples of the whole at 1, 30 of the half at 4, 10 of the quarter at 11."""

    def constant(kind, manifest, value, n, variant=""):
        tensors = {spec.name: np.full(spec.shape, value, np.float32) for spec in manifest.specs("all")}
        return Update(kind, tensors, n, 0.0, variant)

    parts = [
        constant("width-slice", manifests["half"], 4.0, 30, "half"),
        constant("width-slice", manifests["quarter"], 11.0, 10, "quarter"),
    ]
    effects = {
        "full": folded(FedAvg(), distributed, constant("full", manifests[""], 1.0, 60)),
        "width-slice": folded(WidthSlice(members=MEMBERS), distributed, *parts),
    }
    assert effects["width-slice"].num_examples == 40
    stem = merge(distributed, effects).base["conv1.weight"]
    np.testing.assert_allclose(stem[:4], (60 * 1 + 30 * 4 + 10 * 11) / 100, rtol=1e-6)
    np.testing.assert_allclose(stem[4:8], (60 * 1 + 30 * 4) / 90, rtol=1e-6)
    np.testing.assert_array_equal(stem[8:], 1.0)


def test_with_every_device_at_full_width_it_is_fedavg_bit_for_bit(model, round_model, partitions, run):
    settings = {"epochs": 1, "lr": 0.05, "terms": (FedProx(0.1),)}
    kinds = [FedAvg(**settings), WidthSlice(members=("",), **settings)]
    bases = []
    for kind in kinds:
        sent = [kind.train(model, data, run(str(i))) for i, data in enumerate(partitions["unequal"])]
        bases.append(merge(round_model, {kind.name: folded(kind, round_model, *sent)}).base)
    for name, value in bases[0].items():
        assert value.tobytes() == bases[1][name].tobytes(), name


def test_a_round_without_updates_leaves_the_base(distributed):
    base = merge(distributed, {"width-slice": folded(WidthSlice(members=MEMBERS), distributed)}).base
    assert all(np.array_equal(base[name], value) for name, value in distributed.weights.items())


def test_a_narrower_member_costs_less_of_everything(family, digits):
    profile = DeviceProfile("d", 1, Memory(10**9, 10**9), Speed(1e9), Bandwidth(1e6, 1e6), Power(1, 2))
    loads = [workload(family[name].manifest, digits.class_counts(10)) for name in ("", "half")]
    whole, half = (WidthSlice(members=("half",)).cost(load, profile) for load in loads)
    assert half.flops < 0.4 * whole.flops
    assert half.bytes_up < 0.4 * whole.bytes_up
    assert half.peak_memory_bytes < whole.peak_memory_bytes


def test_a_round_in_which_nobody_can_train_the_whole_still_lowers_its_loss(
    family, manifests, distributed, digits, run
):
    strategy = WidthSlice(members=("half",), epochs=2, batch=16)
    whole, half = OnnxModel(family[""]), OnnxModel(family["half"])
    before = accuracy_and_loss(whole.logits(digits.x), digits.y)
    now = distributed
    for number in range(2):
        half.load(strategy.derive(now.weights, manifests)["half"])
        sent = [strategy.train(half, digits, run(device, number)) for device in ("pi-1", "pi-2")]
        merged = merge(now, {"width-slice": folded(strategy, now, *sent)})
        now = replace(now, weights=merged.base)
    whole.load(now.weights)
    after = accuracy_and_loss(whole.logits(digits.x), digits.y)
    assert after.eval_loss < before.eval_loss
    assert after.eval_acc > before.eval_acc


def test_what_was_kept_for_moon_of_another_member_is_not_used(family, digits, run):
    """Without it z_prev is z_glob; with it, it is what that model gave."""
    strategy, half = WidthSlice(members=("half",), terms=(Moon(1.0),)), OnnxModel(family["half"])
    batch = np.arange(5)
    for member, used in ((family[""], False), (family["half"], True)):
        memory = {name: 2 * member.weights()[name] for name in member.manifest.names("all")}
        extras = strategy.plan(half, digits, replace(run(), memory=memory)).extras(batch)
        assert np.array_equal(extras["z_glob"], extras["z_prev"]) != used
