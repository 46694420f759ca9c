"""Rounds: a pure machine, its events and state, and what drives it."""
