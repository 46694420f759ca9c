"""Real device agents and the real aggregator on simulated links: a reference for the fast simulation."""
