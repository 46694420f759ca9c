"""The device's state machine: events in, commands out, without I/O."""
