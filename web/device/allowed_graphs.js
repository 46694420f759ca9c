/** What a graph may hold: allowed_graphs.json, copied by python -m tests.web.vectors. */
export const ALLOWED = {
 "most_bytes": 67108864,
 "most_fields": 500000,
 "most_tensor_bytes": 1099511627776,
 "outside": {"location": "weights", "offset": "0"},
 "value_of_type": {"1": "f", "2": "i", "3": "s", "4": "t", "6": "floats", "7": "ints", "8": "strings"},
 "element_bytes": {"1": 4, "2": 1, "3": 1, "4": 2, "5": 2, "6": 4, "7": 8, "9": 1, "10": 2, "11": 8, "12": 4, "13": 8},
 "data": ["double_data", "float_data", "int32_data", "int64_data", "raw_data", "uint64_data"],
 "messages": {
  "model": {
   "1": {"name": "ir_version", "wire": "varint", "needed": true, "from": 4, "to": 20},
   "2": {"name": "producer_name", "wire": "delimited", "most": 10000},
   "3": {"name": "producer_version", "wire": "delimited", "most": 10000},
   "4": {"name": "domain", "wire": "delimited", "most": 10000},
   "5": {"name": "model_version", "wire": "varint"},
   "6": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "7": {"name": "graph", "wire": "delimited", "message": "graph", "needed": true},
   "8": {"name": "opset_import", "wire": "delimited", "message": "opset_import", "needed": true, "times": 50}
  },
  "opset_import": {
   "1": {"name": "domain", "wire": "delimited", "most": 10000},
   "2": {"name": "version", "wire": "varint", "needed": true, "from": 1, "to": 40}
  },
  "graph": {
   "1": {"name": "node", "wire": "delimited", "message": "node", "times": 100000},
   "2": {"name": "name", "wire": "delimited", "most": 10000},
   "5": {"name": "initializer", "wire": "delimited", "message": "initialiser", "times": 100000},
   "10": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "11": {"name": "input", "wire": "delimited", "message": "value", "times": 100000},
   "12": {"name": "output", "wire": "delimited", "message": "value", "needed": true, "times": 100000}
  },
  "node": {
   "1": {"name": "input", "wire": "delimited", "most": 10000, "times": 10000},
   "2": {"name": "output", "wire": "delimited", "most": 10000, "times": 10000},
   "3": {"name": "name", "wire": "delimited", "most": 10000},
   "4": {"name": "op_type", "wire": "delimited", "most": 10000, "needed": true},
   "5": {"name": "attribute", "wire": "delimited", "message": "attribute", "times": 100},
   "6": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "7": {"name": "domain", "wire": "delimited", "most": 10000}
  },
  "attribute": {
   "1": {"name": "name", "wire": "delimited", "most": 10000, "needed": true},
   "2": {"name": "f", "wire": "fixed32"},
   "3": {"name": "i", "wire": "varint"},
   "4": {"name": "s", "wire": "delimited", "most": 10000},
   "5": {"name": "t", "wire": "delimited", "message": "tensor"},
   "7": {"name": "floats", "wire": "fixed32", "times": 500000},
   "8": {"name": "ints", "wire": "varint", "times": 500000},
   "9": {"name": "strings", "wire": "delimited", "most": 10000, "times": 500000},
   "13": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "20": {"name": "type", "wire": "varint", "needed": true, "one_of": [1, 2, 3, 4, 6, 7, 8]}
  },
  "tensor": {
   "1": {"name": "dims", "wire": "varint", "from": 0, "to": 2147483647, "times": 16},
   "2": {"name": "data_type", "wire": "varint", "needed": true, "one_of": [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]},
   "4": {"name": "float_data", "wire": "delimited"},
   "5": {"name": "int32_data", "wire": "delimited"},
   "7": {"name": "int64_data", "wire": "delimited"},
   "8": {"name": "name", "wire": "delimited", "most": 10000},
   "9": {"name": "raw_data", "wire": "delimited"},
   "10": {"name": "double_data", "wire": "delimited"},
   "11": {"name": "uint64_data", "wire": "delimited"},
   "12": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "14": {"name": "data_location", "wire": "varint", "one_of": [0]}
  },
  "initialiser": {
   "1": {"name": "dims", "wire": "varint", "from": 0, "to": 2147483647, "times": 16},
   "2": {"name": "data_type", "wire": "varint", "needed": true, "one_of": [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]},
   "4": {"name": "float_data", "wire": "delimited"},
   "5": {"name": "int32_data", "wire": "delimited"},
   "7": {"name": "int64_data", "wire": "delimited"},
   "8": {"name": "name", "wire": "delimited", "most": 10000, "needed": true},
   "9": {"name": "raw_data", "wire": "delimited"},
   "10": {"name": "double_data", "wire": "delimited"},
   "11": {"name": "uint64_data", "wire": "delimited"},
   "12": {"name": "doc_string", "wire": "delimited", "most": 10000},
   "13": {"name": "external_data", "wire": "delimited", "message": "entry", "times": 3},
   "14": {"name": "data_location", "wire": "varint", "one_of": [0, 1]}
  },
  "entry": {
   "1": {"name": "key", "wire": "delimited", "most": 10000, "needed": true},
   "2": {"name": "value", "wire": "delimited", "most": 10000, "needed": true}
  },
  "value": {
   "1": {"name": "name", "wire": "delimited", "most": 10000, "needed": true},
   "2": {"name": "type", "wire": "delimited", "message": "type", "needed": true},
   "3": {"name": "doc_string", "wire": "delimited", "most": 10000}
  },
  "type": {
   "1": {"name": "tensor_type", "wire": "delimited", "message": "tensor_type", "needed": true}
  },
  "tensor_type": {
   "1": {"name": "elem_type", "wire": "varint", "needed": true, "one_of": [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13]},
   "2": {"name": "shape", "wire": "delimited", "message": "shape"}
  },
  "shape": {
   "1": {"name": "dim", "wire": "delimited", "message": "dimension", "times": 16}
  },
  "dimension": {
   "1": {"name": "dim_value", "wire": "varint", "from": 0, "to": 2147483647},
   "2": {"name": "dim_param", "wire": "delimited", "most": 10000}
  }
 },
 "refused": {
  "model": {"14": "metadata", "20": "training information", "25": "functions of its own", "26": "device settings"},
  "graph": {"13": "shapes of inner values", "14": "quantisation notes", "15": "a sparse initialiser", "16": "metadata"},
  "node": {"8": "an overload", "9": "metadata", "10": "device settings"},
  "attribute": {"6": "a graph within it", "10": "a list of tensors", "11": "graphs within it", "14": "a type", "15": "types", "21": "a reference", "22": "a sparse tensor", "23": "sparse tensors"},
  "tensor": {"3": "a segment", "6": "strings", "13": "data that lie outside", "16": "metadata"},
  "initialiser": {"3": "a segment", "6": "strings", "16": "metadata"},
  "type": {"4": "a sequence", "5": "a map", "6": "a denotation", "7": "an opaque type", "8": "a sparse tensor", "9": "an optional value"},
  "value": {"4": "metadata"},
  "dimension": {"3": "a denotation"}
 },
 "random": [
  "Bernoulli", "Dropout", "DropoutGrad", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
  "RandomUniformLike"
 ],
 "all_inputs": ["Concat", "ConcatTraining", "Einsum", "Max", "Mean", "Min", "Sum"],
 "operators": {
  "": [
   "Abs", "Acos", "Acosh", "Add", "AffineGrid", "And", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan",
   "Atanh", "Attention", "AveragePool", "BatchNormalization", "BitCast", "BitShift", "BitwiseAnd",
   "BitwiseNot", "BitwiseOr", "BitwiseXor", "BlackmanWindow", "Cast", "CastLike", "CausalConvWithState",
   "Ceil", "Celu", "CenterCropPad", "Clip", "Col2Im", "Compress", "Concat", "Constant", "ConstantOfShape",
   "Conv", "ConvInteger", "ConvTranspose", "Cos", "Cosh", "CumProd", "CumSum", "DFT", "DeformConv",
   "DepthToSpace", "DequantizeLinear", "Det", "Div", "DynamicQuantizeLinear", "Einsum", "Elu", "Equal",
   "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "GRU", "Gather", "GatherElements", "GatherND",
   "Gelu", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Greater", "GreaterOrEqual",
   "GridSample", "GroupNormalization", "HammingWindow", "HannWindow", "HardSigmoid", "HardSwish",
   "Hardmax", "Identity", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LSTM", "LayerNormalization",
   "LeakyRelu", "Less", "LessOrEqual", "LinearAttention", "Log", "LogSoftmax", "LpNormalization",
   "LpPool", "MatMul", "MatMulInteger", "Max", "MaxPool", "MaxRoiPool", "MaxUnpool", "Mean",
   "MeanVarianceNormalization", "MelWeightMatrix", "Min", "Mish", "Mod", "Mul", "Neg",
   "NegativeLogLikelihoodLoss", "NonMaxSuppression", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pad",
   "Pow", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "RMSNormalization", "RNN", "Range",
   "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
   "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Resize",
   "ReverseSequence", "RoiAlign", "RotaryEmbedding", "Round", "STFT", "Scatter", "ScatterElements",
   "ScatterND", "Selu", "Shape", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax",
   "SoftmaxCrossEntropyLoss", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub",
   "Sum", "SwiGLU", "Swish", "Tan", "Tanh", "TensorScatter", "ThresholdedRelu", "Tile", "TopK",
   "Transpose", "Trilu", "Unique", "Unsqueeze", "Upsample", "Where", "Xor"
  ],
  "com.microsoft": [
   "BatchNormInternal", "BatchNormalizationGrad", "BiasFastGeluGrad_dX", "BiasGelu", "BiasGeluGrad_dX",
   "BroadcastGradientArgs", "ConcatTraining", "ConvGrad", "ConvTransposeGrad", "DivGrad", "FastGelu",
   "FastGeluGrad", "FusedMatMul", "GatherElementsGrad", "GatherGrad", "GatherNDGrad", "Gelu", "GeluGrad",
   "InvertibleLayerNormalizationGrad", "LayerNormalizationGrad", "LeakyReluGrad", "LogSoftmaxGrad",
   "LogSoftmaxGrad_13", "MaxPoolGrad", "QuickGelu", "QuickGeluGrad", "ReduceSumTraining", "ReluGrad",
   "ResizeGrad", "Scale", "SigmoidGrad", "SimplifiedLayerNormalizationGrad", "SinGrad", "SliceGrad",
   "SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternal",
   "SoftmaxCrossEntropyLossInternalGrad", "SoftmaxGrad", "SoftmaxGrad_13", "SparseSoftmaxCrossEntropy",
   "SparseSoftmaxCrossEntropyGrad", "SplitTraining", "TanhGrad"
  ]
 }
};
