"""Zeroth-order directions, and steps along them."""
