"""Who does the training of simulated devices: the plain way, and faster ones that give the same."""
