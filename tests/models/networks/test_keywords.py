from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks.small import keywords

DATA = Path(__file__).parents[4] / "shared" / "data" / "speech_commands12_logmel_u8.npz"


def test_parameters_are_counted():
    """conv 64*40; four blocks of 9*64 + 64*64; nine norms of 2*64; head 12*64 + 12."""
    expected = 64 * 40 + 4 * (9 * 64 + 64 * 64) + 9 * 2 * 64 + 12 * 64 + 12
    assert sum(p.numel() for p in keywords().parameters()) == expected < 100_000


def test_both_norms_and_nothing_else():
    for norm in ("group", "batch"):
        assert keywords(norm=norm).eval()(torch.randn(2, 1, 61, 40)).shape == (2, 12)
    with pytest.raises(ValueError, match="norm is 'layer', expected one of group, batch"):
        keywords(norm="layer")
    with pytest.raises(ValueError, match="channels are 12, expected a multiple of 8"):
        keywords(channels=12)


@pytest.mark.slow
def test_every_graph_passes_the_gate(tmp_path):
    labels = tuple(str(i) for i in range(12))
    spec = ExportSpec("keywords", InputSpec(shape=(1, 61, 40)), labels)
    bundle = export(keywords(channels=16), spec, tmp_path / "keywords")
    assert {"train.all", "train.mid", "train.head"} <= bundle.manifest.graphs.keys()


@pytest.mark.slow
def test_keywords_are_learnt_from_recordings():
    """Chance is the commonest class's share p; guessing n times stays below p + 5 sqrt(p (1 - p) / n)."""
    if not DATA.exists():
        pytest.skip(f"{DATA.name} is not there")
    torch.manual_seed(0)
    x, y, x_test, y_test = _recordings()
    module = keywords()
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    for _ in range(3):
        for index in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[index]), y[index]).backward()
            optimiser.step()
    with torch.no_grad():
        right = (module.eval()(x_test).argmax(1) == y_test).double().mean().item()
    share = torch.bincount(y_test).max().item() / len(y_test)
    assert right > share + 5 * (share * (1 - share) / len(y_test)) ** 0.5
    assert right > 2 * share


def _recordings():
    with np.load(DATA, allow_pickle=False) as data:
        arrays = [data[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    x, x_test = (torch.from_numpy(a).float().unsqueeze(1) for a in (arrays[0], arrays[2]))
    mean, std = x.mean(), x.std()
    y, y_test = (torch.from_numpy(a.astype(np.int64)) for a in (arrays[1], arrays[3]))
    return (x - mean) / std, y, (x_test - mean) / std, y_test
