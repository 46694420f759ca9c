"""Finds the broker, checks offers and sends a device's messages."""
