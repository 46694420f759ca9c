"""Configuration of the aggregator's service: addresses, enrolled devices, logs, exit codes."""
