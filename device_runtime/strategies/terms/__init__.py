"""Terms added to the loss of local training, and differential privacy of its steps."""
