"""The aggregator's state machine of rounds: events in, commands out, without I/O."""
