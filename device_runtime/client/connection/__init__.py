"""How a device finds its broker, whom it believes, and what it says."""
