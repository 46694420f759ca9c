"""Masked sums: the aggregator learns the sum of a group's updates, and no single one (docs/privacy.md)."""
