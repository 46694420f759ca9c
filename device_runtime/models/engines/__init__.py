"""Engines that run a bundle's graphs; ONNX Runtime first."""
