"""Fleets of simulated devices: how they differ, when they are available, how they fail."""
