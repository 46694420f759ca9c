"""Exports a torch module as a bundle. Needs torch."""
