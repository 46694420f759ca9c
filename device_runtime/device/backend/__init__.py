"""Backends that do a round's work, in the device's process or in a worker process."""
