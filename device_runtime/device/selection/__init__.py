"""Chooses the update that a device can afford: measures, predicts, decides."""
