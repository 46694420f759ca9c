"""The device's half of kinds of update: local training and what it needs."""
