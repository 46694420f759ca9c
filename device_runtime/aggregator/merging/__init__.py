"""Merges the contributions of a round into the next base model and the served model."""
