"""Bundles: a network's graphs, weights and manifest, verified when they are opened."""
