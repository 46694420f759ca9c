"""Training graphs in ONNX Runtime's blocked layout."""
