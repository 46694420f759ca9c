"""Merges the updates of a round into one model."""
