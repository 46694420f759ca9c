"""Scenarios: the settings of a simulation, and the clients that they make."""
