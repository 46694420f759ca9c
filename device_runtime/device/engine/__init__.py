"""The engine that trains on a device, within its memory, and its profiles."""
