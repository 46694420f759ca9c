"""From an update to its receipt, and from an offer to its blobs."""
