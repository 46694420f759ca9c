"""Bundles (ONNX graphs, weights, manifest), the engines that run them, and their export from torch."""
