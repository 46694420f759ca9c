"""Which of ONNX Runtime's optimisers change a training graph before it runs.

Each that changes something has the whole graph resolved again, about 12 ms for a large one: a session of a
training graph spends most of its start there. Kept are those that make steps faster (`benchmarks/exports.py`
for the start, `benchmarks/engines.py` for the steps): MatMulAddFusion, MatmulTransposeFusion,
ConvActivationFusion, TransposeOptimizer.
"""

from device_runtime.models.bundles.tensors import Tensors

_WITH_CONSTANTS = (
    "ConstantFolding", "Level1_RuleBasedTransformer", "NchwcTransformer", "ConvAddActivationFusion",
)  # fmt: skip
"""Kept where matrices or kernels are frozen: only these can be folded, and laid out for the processor."""

_OTHERS = (
    "AttentionFusion", "BiasDropoutFusion", "BiasGeluFusion", "BiasSkipLayerNormFusion", "BiasSoftmaxFusion",
    "CastFloat16Transformer", "CommonSubexpressionElimination", "ConstantSharing", "DoubleQDQPairsRemover",
    "DynamicQuantizeMatMulFusion", "EmbedLayerNormFusion", "EnsureUniqueDQForNodeUnit", "FastGeluFusion",
    "FreeDimensionOverrideTransformer", "FuseFp16InitializerToFp32NodeTransformer",
    "GatherSliceToSplitFusion", "GatherToSliceFusion", "GeluFusionL1", "GeluFusionL2",
    "GemmActivationFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "LayerNormFusionL1", "LayerNormFusionL2", "Level2_RuleBasedTransformer", "MatMulActivationFusion",
    "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "MatMulScaleFusion", "NhwcTransformer",
    "QDQFinalCleanupTransformer", "QDQPropagationTransformer", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "QuickGeluFusion", "RemoveDuplicateCastTransformer", "ReshapeFusion",
    "SimplifiedLayerNormFusion", "SkipLayerNormFusion", "SliceConcatToSpaceToDepthFusion",
    "TransposeOptimizer_CPUExecutionProvider", "WeightBiasQuantization", "WhereDummyDq",
)  # fmt: skip
"""Every other name in ONNX Runtime 1.19 to 1.31; it passes over names that it does not have."""


def left_out(frozen: Tensors) -> list[str]:
    """Names of the optimisers that a training graph with these frozen tensors does without."""
    constants = any(value.ndim > 1 for value in frozen.values())
    return [*_OTHERS, *(() if constants else _WITH_CONSTANTS)]
