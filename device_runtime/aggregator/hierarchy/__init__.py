"""The site: an aggregator for its devices, and one device to the aggregator above it."""
