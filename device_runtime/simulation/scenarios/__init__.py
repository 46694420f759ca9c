"""What is simulated: a fleet, the data divided among its devices, and the task that they are given."""
