"""Rounds in virtual time: which devices are asked when, and what each of them then does."""
