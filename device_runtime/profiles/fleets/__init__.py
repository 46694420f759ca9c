"""Fleets of devices: how they differ, when they are there, what befalls them."""
