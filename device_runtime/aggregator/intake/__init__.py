"""Receives, checks and stores the contributions of devices."""
