"""Kinds of update: one file each, with the device's half and the aggregator's half."""
