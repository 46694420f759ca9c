"""Persistent storage of a run: its database, its files, and its served models."""
