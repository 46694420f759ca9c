"""What a simulated run has done: its asks, rounds, bases and checkpoints."""
