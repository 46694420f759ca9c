"""Commands for a device and its owner."""
