"""Masked rounds on a device: what they change about its choice, and how it masks an update."""
