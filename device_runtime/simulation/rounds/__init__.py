"""Rounds of a simulation: asks, training, merging, evaluation."""
