"""Facts about kinds of update by name, without importing any kind."""

EXACT_KINDS = frozenset({"zeroth-order", "class-means"})
"""Kinds that send exact values and take no codec; see `registry.codec_setting`."""
