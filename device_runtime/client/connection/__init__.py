"""How a device finds its broker, checks offers, and sends its messages."""
