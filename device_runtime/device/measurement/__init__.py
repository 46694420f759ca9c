"""Measures what the updates of this device cost: time, memory and energy."""
