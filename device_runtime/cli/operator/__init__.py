"""Commands for the operator of an aggregator."""
