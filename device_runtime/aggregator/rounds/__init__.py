"""The round machine (a pure function with its events and state), and the code that drives it."""
