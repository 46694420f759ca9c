"""Executors train simulated devices: one by one, in batches, in processes, or on a Ray cluster."""
