"""Differential privacy of local training: settings and accounting."""
