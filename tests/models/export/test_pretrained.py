"""Weights of ImageNet, on photographs and on CIFAR-10; read from ../shared/data."""

import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.networks import build
from device_runtime.models.torch_modules.parameters import load_weights, read_weights

ROOT = Path(__file__).parents[3]
DATA = ROOT.parent / "shared" / "data"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="real data is read from ../shared/data, which is not there"),
]

BUILDINGS = {"palace", "monastery", "bell cote", "stupa", "castle", "church", "dome", "boathouse", "beacon"}


def top_five(module, name: str, mean, std) -> list[str]:
    """Names of the five likeliest classes of a photograph of scikit-learn's, squeezed to 224 x 224."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    photo = Image.fromarray(load_sample_image(name)).resize((224, 224), Image.Resampling.BILINEAR)
    x = (np.asarray(photo, np.float32) / 255 - np.float32(mean)) / np.float32(std)
    with torch.no_grad():
        logits = module.eval()(torch.from_numpy(x.transpose(2, 0, 1)[None].copy()))
    labels = (DATA / "imagenet1000_labels.txt").read_text().splitlines()
    return [labels[index].partition(",")[0] for index in logits[0].topk(5).indices]


def test_squeezenet_of_imagenet_loads_and_sees_what_is_there():
    """ImageNet has no dahlia; what it has of that kind is round, with rays."""
    module = build("squeezenet", {"version": "1.0", "head": "conv"})
    load_weights(module, DATA / "squeezenet1_0_imagenet.npz")
    normal = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    china = top_five(module, "china.jpg", *normal)
    assert china[0] in BUILDINGS
    assert len(BUILDINGS.intersection(china)) >= 4
    rays = {"sea urchin", "daisy", "brain coral", "jellyfish", "lionfish", "coral fungus"}
    assert len(rays.intersection(top_five(module, "flower.jpg", *normal))) >= 3


def test_mobilenet_of_imagenet_loads_and_sees_what_is_there():
    module = build("mobilenet_v2", {"padding": "same"})
    load_weights(module, DATA / "mobilenet_v2_imagenet.npz")
    china = top_five(module, "china.jpg", 0.5, 0.5)
    assert china[0] == "palace"
    assert len(BUILDINGS.intersection(china)) >= 4
    flower = top_five(module, "flower.jpg", 0.5, 0.5)
    assert flower[0] == "daisy"
    assert "bee" in flower


@pytest.mark.parametrize(
    ("name", "file", "head"),
    [
        ("squeezenet", "squeezenet1_0_imagenet.npz", "classifier.1"),
        ("mobilenet_v2", "mobilenet_v2_imagenet.npz", "classifier.1"),
    ],
)
def test_body_of_imagenet_takes_a_head_of_ten_classes(name, file, head):
    module = build(name, {"classes": 10})
    before = module.classifier[1].weight.clone()
    load_weights(module, DATA / file, skip_head=head)
    assert torch.equal(module.classifier[1].weight, before)
    weights = read_weights(DATA / file)
    for parameter, value in module.features.named_parameters(prefix="features"):
        assert torch.equal(value, weights[parameter]), parameter


def test_nearest_class_mean_on_squeezenet_features_scores_as_computed_elsewhere(tmp_path):
    """0.625 was computed independently, from the same weights and images."""
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "ncm_cifar10.py"))
    bundle = benchmark["backbone"](tmp_path / "bundle")
    result = benchmark["nearest_class_mean"](bundle, benchmark["read"]("train"), benchmark["read"]("test"))
    assert result.accuracy == pytest.approx(0.625, abs=0.005)
