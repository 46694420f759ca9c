import pytest

torch = pytest.importorskip("torch")

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.export.export import ExportSpec, export
from device_runtime.models.networks.vision import Attention, PatchEmbed, vit

TINY = {"image": 8, "patch": 4, "depth": 3, "dim": 12, "heads": 2, "classes": 4}


def test_parameters_have_timms_names_and_shapes():
    """Tiny (Touvron et al. 2021): 14 * 14 patches and the class token, width 192, MLP 4 * 192."""
    shapes = {name: tuple(p.shape) for name, p in vit("tiny", classes=1000).state_dict().items()}
    block = {
        "norm1.weight": (192,), "norm1.bias": (192,), "norm2.weight": (192,), "norm2.bias": (192,),
        "attn.qkv.weight": (576, 192), "attn.qkv.bias": (576,), "attn.proj.weight": (192, 192),
        "attn.proj.bias": (192,), "mlp.fc1.weight": (768, 192), "mlp.fc1.bias": (768,),
        "mlp.fc2.weight": (192, 768), "mlp.fc2.bias": (192,),
    }  # fmt: skip
    around = {
        "cls_token": (1, 1, 192), "pos_embed": (1, 197, 192), "patch_embed.proj.weight": (192, 3, 16, 16),
        "patch_embed.proj.bias": (192,), "norm.weight": (192,), "norm.bias": (192,),
        "head.weight": (1000, 192), "head.bias": (1000,),
    }  # fmt: skip
    blocks = {f"blocks.{i}.{name}": shape for i in range(12) for name, shape in block.items()}
    assert shapes == {**around, **blocks}


def test_timms_weights_give_timms_outputs():
    timm = pytest.importorskip("timm", exc_type=ImportError)
    torch.manual_seed(0)
    theirs = timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=3, num_heads=4, num_classes=7
    ).eval()
    ours = vit(image=32, patch=8, dim=48, depth=3, heads=4, classes=7).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs(x))


def test_patches_as_a_product_are_the_convolution():
    embed = PatchEmbed(3, 4, 5)
    x = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(embed(x), embed.proj(x).flatten(2).transpose(1, 2))


def test_attention_is_torchs():
    torch.manual_seed(0)
    attention = Attention(12, 3)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = attention.qkv.weight.data, attention.qkv.bias.data
    theirs.out_proj.load_state_dict(attention.proj.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(attention(x), theirs(x, x, x, need_weights=False)[0])


def test_levels_are_thirds_of_the_blocks():
    module = vit(depth=7, dim=12, heads=2)
    assert [module.levels[f"blocks.{i}"] for i in range(7)] == ["low"] * 2 + ["mid"] * 2 + ["up"] * 3
    assert module.level_outputs == {"low": "blocks.1", "mid": "blocks.3", "up": "blocks.6"}


def test_sizes_that_do_not_fit_are_refused():
    for settings, message in (
        ({"size": "huge"}, "size is 'huge', expected one of tiny, small, base"),
        ({"image": 30, "patch": 8}, "patches of 8 do not fill an image of 30"),
        ({"dim": 10, "heads": 3}, "3 heads do not divide a width of 10"),
        ({"depth": 2}, "depth is 2, expected at least 3"),
    ):
        with pytest.raises(ValueError, match=message):
            vit(**settings)


@pytest.mark.slow
def test_every_graph_of_a_vit_passes_the_gate(tmp_path):
    labels = ("a", "b", "c", "d")
    bundle = export(vit(**TINY), ExportSpec("vit", InputSpec(shape=(3, 8, 8)), labels), tmp_path / "vit")
    assert {"train.all", "train.mid", "train.head"} <= bundle.manifest.graphs.keys()
