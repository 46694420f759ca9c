"""The mask helper: tells an aggregator the sum of the masks of many devices, and no single mask."""
