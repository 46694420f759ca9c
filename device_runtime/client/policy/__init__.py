"""When a device may work, and on what: its owner's rules."""
