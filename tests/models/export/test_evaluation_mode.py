"""What a module does only in training mode is not in a bundle, which is said."""

import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.evaluation_mode import frozen_norms, left_out
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.torch_modules.functional_module import FunctionalModule

nn = torch.nn
SPEC = ExportSpec("it", InputSpec((8,)), ("a", "b", "c"), sets={"head": {}})


class DropPath(nn.Module):
    """Leaves out a sample's layer at random (Huang et al. 2016), as it is often written by hand."""

    def forward(self, x):
        return x * (torch.rand(len(x), 1) < 0.9) if self.training else x


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x if self.training else x


class Unruly(nn.Module):
    def forward(self, x):
        if self.training:
            raise KeyError("epoch")
        return x


def warning(*layers) -> str:
    module = nn.Sequential(*layers, nn.Linear(8, 3)).eval()
    torch.manual_seed(0)
    return left_out(FunctionalModule(module, str(len(layers)), torch.randn(4, 8)))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.LayerNorm(8)), ""),
        ((nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.1)), "Dropout (0, 2)"),
        ((nn.Dropout(0.0), nn.Linear(8, 8)), ""),
        ((nn.AlphaDropout(0.2), DropPath(), nn.RReLU()), "AlphaDropout (0); DropPath (1); RReLU (2)"),
        (tuple(nn.Dropout(0.5) for _ in range(5)), "Dropout (0, 1, 2, 2 more)"),
        ((Doubled(), nn.Sequential(Doubled())), "Doubled (0, 1.0)"),
        ((Unruly(),), "Unruly (0)"),
        (
            (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),),
            "_SpectralNorm (0.parametrizations.weight.0)",
        ),
        ((nn.utils.spectral_norm(nn.Linear(8, 8)),), "Linear (0)"),
    ],
)
def test_layers_that_do_something_else_in_training_are_found(layers, expected):
    assert warning(*layers) == expected


def test_attention_with_dropout_and_code_of_the_module_itself_are_found():
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            logits = self.head(self.attention(x, x, x)[0].mean(1))
            return logits + 1 if self.training else logits

    layers = left_out(FunctionalModule(Attending().eval(), "head", torch.randn(4, 5, 8)))
    assert layers == "Attending (the module itself); MultiheadAttention (attention)"


def test_norms_that_keep_the_statistics_of_a_new_layer_are_said():
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    assert frozen_norms(module).startswith("1 batch norms stay at mean 0 and variance 1, as they are new:")
    module(torch.randn(16, 8) + 3)
    assert frozen_norms(module).startswith("1 batch norms stay at the mean and variance that they have:")
    assert frozen_norms(nn.Linear(8, 3)) == ""


def test_an_export_says_in_a_line_what_devices_train_without(tmp_path, caplog):
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    export(module, SPEC, tmp_path / "out")
    assert "exported as in eval mode, so that devices train without: Dropout (1)" in caplog.text
