"""The aggregator's side of masked sums: asks mask helpers for sums of masks, and opens sums of updates."""
