import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

from models.inputs import InputSpec  # noqa: E402
from models.torch_export import ExportSpec, export  # noqa: E402
from models.torch_networks.vit import vit  # noqa: E402
from models.torch_sets import changes  # noqa: E402


def test_sets_that_change_the_network_are_said_where_they_share_a_bundle():
    said = changes({"head": {}, "prefix": {}, "all": {}})
    assert said.startswith(
        "untrained prefix tokens change what the network computes, in forward and all, head"
    )
    both = changes({"prompt": {}, "prefix": {}})
    assert both.startswith(
        "untrained prompt and prefix tokens change what the network computes, in forward too"
    )
    assert changes({"prompt": {}}) == ""
    assert changes({"all": {}, "lora": {"rank": 2}, "adapter": {}, "sparse": {}}) == ""


def test_export_says_so_in_one_line(tmp_path, caplog):
    torch.manual_seed(0)
    module = vit(classes=3, image=8, patch=4, depth=3, dim=8, heads=2)
    spec = ExportSpec("it", InputSpec((3, 8, 8)), ("a", "b", "c"), sets={"head": {}, "prompt": {"tokens": 2}})
    with caplog.at_level(logging.WARNING, logger="models.torch_export"):
        export(module, spec, tmp_path / "out")
    [record] = [r for r in caplog.records if r.name == "models.torch_export"]
    assert "untrained prompt tokens change" in record.getMessage()
    assert "\n" not in record.getMessage()
