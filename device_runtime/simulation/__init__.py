"""Simulated federated learning on one machine, on virtual time or with real device processes (demo)."""
