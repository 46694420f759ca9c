"""Work on one round: training an update within time and memory."""
