"""The owner's rules: when a device may work, what for, and with what privacy."""
