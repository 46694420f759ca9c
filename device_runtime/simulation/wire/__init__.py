"""The real agents and the real aggregator on simulated links, in virtual time: a yardstick."""
