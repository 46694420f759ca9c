"""Engines that run the graphs of a bundle; ONNX Runtime is the default."""
