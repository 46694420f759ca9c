"""The aggregator: opens rounds, checks and stores contributions, merges them, and reports results."""
