"""Compares the local models of a simulated round: drift, similarity, and what they predict."""
