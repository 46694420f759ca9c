"""Terms that are added to the loss of local training."""
