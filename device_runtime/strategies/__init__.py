"""Kinds of update: one file each, with the half that a device runs and the half that the aggregator runs."""
