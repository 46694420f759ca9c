import numpy as np

from device_runtime.models.available_engines.onnx_engine import OnnxModel
from device_runtime.models.engines.onnx_session import disabled_optimisers


def test_constants_are_folded_and_laid_out_only_where_kernels_are_frozen():
    kernel, statistic = np.zeros((4, 3, 3, 3), np.float32), np.zeros(4, np.float32)
    assert "ConstantFolding" not in disabled_optimisers(
        {"conv.weight": kernel, "norm.running_mean": statistic}
    )
    assert "ConstantFolding" in disabled_optimisers({"norm.running_mean": statistic})
    for frozen in ({}, {"conv.weight": kernel}):
        names = disabled_optimisers(frozen)
        assert len(set(names)) == len(names)
        assert not {"MatMulAddFusion", "ConvActivationFusion"}.intersection(names)


def test_the_gradient_is_the_same_with_all_optimisers(digits, monkeypatch):
    x = np.random.default_rng(0).standard_normal((6, 1, 8, 8), np.float32)
    y = np.arange(6)
    few, all_of_them = OnnxModel(digits).trainer("mid"), OnnxModel(digits)
    few.loss_and_grads(x, y)
    monkeypatch.setattr("device_runtime.models.engines.onnx_session.disabled_optimisers", lambda frozen: [])
    trainer = all_of_them.trainer("mid")
    trainer.loss_and_grads(x, y)
    np.testing.assert_allclose(few.grads.vector, trainer.grads.vector, rtol=1e-4, atol=1e-6)
