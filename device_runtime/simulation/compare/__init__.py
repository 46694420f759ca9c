"""Runs of one fleet: policies times seeds, each a process of its own, kept in files and resumed from them."""
