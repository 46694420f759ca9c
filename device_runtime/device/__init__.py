"""The device: it measures itself, chooses an update, trains it and sends it."""
